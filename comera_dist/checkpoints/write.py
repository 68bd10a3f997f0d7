"""How checkpoints come and go: published atomically, and deleted only behind others that are whole.

A checkpoint is written under `.tmp`, hashed as read back from the disk, flushed, renamed, and only then does `LATEST`
move and an older checkpoint go. Where the disk fails one process, none goes on, and what there was stays.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from comera_dist.checkpoints.disk import disk_errors_named
from comera_dist.checkpoints.folders import folder_name, published, step_of
from comera_dist.checkpoints.manifest import MANIFEST, write_manifest
from comera_dist.checkpoints.read import Checkpoint
from comera_dist.checkpoints.verify import looks_whole
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.sharing import share_out
from comera_dist.runtime.together import together
from comera_dist.storage.files import flush, write_flushed, write_whole

LATEST = "LATEST"
PARTIAL = ".tmp-"
DAMAGED = "damaged_"


class Saveable(Protocol):
    """What a checkpoint keeps of an engine. `check_weights` and `state` are collective."""

    processes: Processes

    @property
    def shapes(self) -> dict[str, torch.Size]: ...

    @property
    def optimizer_step(self) -> int: ...

    @property
    def gate_step(self) -> int: ...

    def check_weights(self) -> None: ...

    def state(self, owners: dict[str, int]) -> dict[str, dict[str, Tensor]]: ...


class Saver:
    """Publishes the checkpoints of one start of a run in `root`; `resumed` is the one that it goes on from.

    A checkpoint is deleted when `keep` newer ones are whole. `resumed` and those that this start has written are known
    to be whole, because their content was hashed. Others count where there are fewer than `keep` known ones and where
    their manifest and the sizes of their files are right. What was passed over as damaged is renamed to
    `damaged_step_N`: it must not be found instead of what is written now, and a person may be able to repair it.
    """

    def __init__(self, root: Path, keep: int, resumed: Checkpoint | None = None):
        self._root, self._keep = root, keep
        self._known = [] if resumed is None else [resumed.folder]
        self._damaged = () if resumed is None else resumed.damaged

    def save(self, step: int, engine: Saveable, run: dict) -> None:
        """Publishes `root/step_NNNNNNN` with the engine's state and the caller's JSON record `run`. Collective.

        Nothing is saved with a TrainingError where processes hold different weights, and with a CheckpointError where
        the disk fails. A step that is saved already stays as it is.
        """
        target = self._root / folder_name(step)
        if target in self._known:
            return
        engine.check_weights()
        partial = self._root / f"{PARTIAL}{target.name}"
        try:
            self._write(partial, target, engine, run)
        except CheckpointError:
            if engine.processes.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        self._known.append(target)

    def _write(self, partial: Path, target: Path, engine: Saveable, run: dict) -> None:
        processes = engine.processes
        remedy = (
            f"checkpoints of earlier steps are as they were: free space or mend the permissions of {self._root}, and "
            f"start the same command again"
        )

        def on_disk(action, only_first: bool = False):
            """What `action` returned on this process; where the disk fails one process, none goes on."""

            def act():
                with disk_errors_named(f"saving {target} failed", remedy):
                    return None if only_first and not processes.is_first else action()

            return together(act, processes)

        on_disk(lambda: self._make(partial), only_first=True)
        tensors = _share_of(engine)
        shards = processes.gather(on_disk(lambda: _write_shard(partial, tensors, engine)))
        manifest = _manifest(step_of(target), engine, shards, run)
        on_disk(lambda: self._publish(partial, target, manifest), only_first=True)

    def _make(self, partial: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for leftover in self._root.glob(f"{PARTIAL}*"):  # of a save or a deletion that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()

    def _publish(self, partial: Path, target: Path, manifest: bytes) -> None:
        write_flushed(partial / MANIFEST, manifest)
        flush(partial)
        self._set_aside([target])
        os.rename(partial, target)
        flush(self._root)
        self._set_aside(self._damaged)
        self._damaged = ()
        write_whole(self._root / LATEST, f"{target.name}\n", flushed=True)
        self._prune([*self._known, target])

    def _set_aside(self, folders: Iterable[Path]) -> None:
        for folder in (folder for folder in folders if folder.exists()):
            names = (f"{DAMAGED}{folder.name}" + (f"_{number}" if number > 1 else "") for number in count(1))
            aside = next(self._root / name for name in names if not (self._root / name).exists())
            os.rename(folder, aside)
            print(
                f"Checkpoint {folder} is damaged and now {aside.name}; remove it where nobody can repair it.",
                flush=True,
            )

    def _prune(self, known: list[Path]) -> None:
        folders, oldest = published(self._root), min(map(step_of, known))
        if len(folders) <= self._keep:
            return
        whole = [f for f in folders if (f in known or step_of(f) < oldest) and looks_whole(f)]
        if len(whole) >= self._keep:
            for folder in (f for f in folders if step_of(f) < step_of(whole[self._keep - 1])):
                _remove(folder)


def _share_of(engine: Saveable) -> dict[str, dict[str, Tensor]]:
    """What this process has to write: tensors by parameter and kind, on the CPU. Collective."""
    owners = share_out({name: shape.numel() for name, shape in engine.shapes.items()}, engine.processes.count)
    return {
        name: {kind: tensor.cpu().contiguous() for kind, tensor in state.items()}
        for name, state in engine.state(owners).items()
    }


def _write_shard(folder: Path, share: dict[str, dict[str, Tensor]], engine: Saveable) -> dict:
    """Returns what the manifest says of the shard."""
    path = folder / f"shard_{engine.processes.index:05d}-of-{engine.processes.count:05d}.safetensors"
    save_file({f"{kind}/{name}": tensor for name, state in share.items() for kind, tensor in state.items()}, path)
    # safetensors lets nobody else read its files; the folder has the mode that the user's umask asks for.
    path.chmod(folder.stat().st_mode & 0o666)
    flush(path)
    return {
        "file": path.name,
        "shapes": {name: list(state["weight"].shape) for name, state in share.items()},
        "bytes": path.stat().st_size,
        "sha256": file_sha256(path),
    }


def _manifest(step: int, engine: Saveable, shards: list[dict], run: dict) -> bytes:
    return write_manifest(
        {
            "step": step,
            "optimizer_step": engine.optimizer_step,
            "gate_step": engine.gate_step,
            "files": {shard["file"]: {"bytes": shard["bytes"], "sha256": shard["sha256"]} for shard in shards},
            "tensors": {
                name: {"file": shard["file"], "shape": shape}
                for shard in shards
                for name, shape in shard["shapes"].items()
            },
            "run": run,
        }
    )


def _remove(folder: Path) -> None:
    """In one move, so that no half of it is ever found; one that may not be moved stays and harms nobody."""
    doomed = folder.with_name(f"{PARTIAL}{folder.name}")
    with suppress(OSError):
        os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
