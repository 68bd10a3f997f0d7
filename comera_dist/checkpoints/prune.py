"""Which checkpoints stay on the disk: a checkpoint is deleted only when enough newer ones are whole."""

import os
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from comera_dist.checkpoints.disk import published, step_of
from comera_dist.checkpoints.verify import looks_whole

PARTIAL = ".tmp-"  # folders of checkpoints that are written or deleted
DAMAGED = "damaged_"


@dataclass
class Kept:
    """The checkpoints that stay: the `newest` whole ones, all at multiples of `every` steps (0: none), and `best`.

    `best` is the step of the lowest validation loss, once a run that keeps it has saved it. Those of the steps
    `copied`, which a mirror copies now or next, stay until that is done.
    """

    newest: int
    every: int = 0
    best: int | None = None
    copied: tuple[int, ...] = ()

    def is_permanent(self, step: int) -> bool:
        """Whether the checkpoint of a step stays however many newer ones there are."""
        return step == self.best or (self.every > 0 and step % self.every == 0)


def prune(root: Path, kept: Kept, known: Collection[Path]) -> None:
    """Deletes the checkpoints in `root` that are not to be `kept`.

    Those in `known` are whole, because they were hashed. If these are fewer than `kept.newest`, older ones count too
    whose manifest and file sizes are right.
    """
    folders, oldest = published(root), min(map(step_of, known))
    if len(folders) <= kept.newest:
        return
    candidates = (f for f in folders if (f in known or step_of(f) < oldest) and looks_whole(f))
    whole = list(islice(candidates, kept.newest))  # no more are read: a run may keep hundreds for good
    if len(whole) >= kept.newest:
        for folder in (f for f in folders if step_of(f) < step_of(whole[-1])):
            if not kept.is_permanent(step_of(folder)) and step_of(folder) not in kept.copied:
                _remove(folder)


def partial_of(folder: Path) -> Path:
    """Where the checkpoint `folder` lies while it is written or deleted."""
    return folder.with_name(f"{PARTIAL}{folder.name}")


def set_aside(root: Path, folders: Iterable[Path]) -> None:
    """Renames damaged checkpoints, of `folders` those that exist."""
    for folder in filter(Path.exists, folders):
        names = (f"{DAMAGED}{folder.name}" + (f"_{number}" if number > 1 else "") for number in count(1))
        aside = next(root / name for name in names if not (root / name).exists())
        os.rename(folder, aside)
        print(f"Checkpoint {folder} is damaged and now {aside.name}; remove it if nobody can repair it.", flush=True)


def _remove(folder: Path) -> None:
    """Deletes a checkpoint. It is renamed first, so that no half of it is ever found; if that fails it stays."""
    doomed = partial_of(folder)
    with suppress(OSError):
        os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
