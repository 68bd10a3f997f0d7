"""Checkpoints are published atomically, and deleted only when enough newer ones are whole.

A checkpoint is written under `.tmp`, hashed as read back from the disk, flushed and renamed. Only then does `LATEST`
move and an older checkpoint go. If the disk fails on one process, all stop, and the earlier checkpoints stay.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from comera_dist.checkpoints.disk import disk_errors_named, folder_name, published, step_of
from comera_dist.checkpoints.manifest import MANIFEST, write_manifest
from comera_dist.checkpoints.read import Checkpoint
from comera_dist.checkpoints.verify import looks_whole
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.sharing import share_out
from comera_dist.runtime.together import together
from comera_dist.storage.files import flush, write_whole

LATEST = "LATEST"
PARTIAL = ".tmp-"
DAMAGED = "damaged_"
State = dict[str, dict[str, Tensor]]  # tensors by parameter and kind: `weight`, and those of the optimizer


class Saver:
    """Publishes the checkpoints of one start of a run in `root`; `resumed` is the checkpoint that it resumes from.

    A checkpoint is deleted when `keep` newer ones are whole. `resumed` and the checkpoints of this start are known to
    be whole, because they were hashed. If these are fewer than `keep`, older ones count too whose manifest and file
    sizes are right. A checkpoint that was passed over as damaged is renamed to `damaged_step_N`: the next start must
    not find it before newer ones, and a person may be able to repair it.
    """

    def __init__(self, root: Path, keep: int, resumed: Checkpoint | None = None):
        self._root, self._keep = root, keep
        self._known = [] if resumed is None else [resumed.folder]
        self._damaged = () if resumed is None else resumed.damaged

    def save(self, step: int, engine: Engine, run: dict[str, Any]) -> None:
        """Publishes `root/step_NNNNNNN` with the engine's state and the caller's JSON record `run`. Collective.

        Does nothing if this start has saved or resumed `step`. Saves nothing and raises TrainingError if processes
        hold different weights, CheckpointError if the disk fails.
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

    def _write(self, partial: Path, target: Path, engine: Engine, run: dict[str, Any]) -> None:
        processes = engine.processes
        on_disk = disk_errors_named(
            f"saving {target} failed",
            f"checkpoints of earlier steps are as they were: free space or mend the permissions of {self._root}, and "
            f"start the same command again",
        )
        if_first = processes.is_first
        together(on_disk(lambda: self._make(partial) if if_first else None), processes)
        share = _share_of(engine)
        shards = processes.gather(together(on_disk(lambda: _write_shard(partial, share, processes)), processes))
        counts = {"step": step_of(target), "optimizer_step": engine.optimizer_step, "gate_step": engine.gate_step}
        files = {name: file for name, file, _ in shards}
        tensors = {key: {"file": name, "shape": shape} for name, _, shapes in shards for key, shape in shapes.items()}
        manifest = write_manifest({**counts, "files": files, "tensors": tensors, "run": run})
        together(on_disk(lambda: self._publish(partial, target, manifest) if if_first else None), processes)

    def _make(self, partial: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for leftover in self._root.glob(f"{PARTIAL}*"):  # of a save or a deletion that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()

    def _publish(self, partial: Path, target: Path, manifest: bytes) -> None:
        write_whole(partial / MANIFEST, manifest, flushed=True)
        self._set_aside([target])
        os.rename(partial, target)
        flush(self._root)
        self._set_aside(self._damaged)
        self._damaged = ()
        write_whole(self._root / LATEST, f"{target.name}\n", flushed=True)
        self._prune([*self._known, target])

    def _set_aside(self, folders: Iterable[Path]) -> None:
        """Renames damaged checkpoints, of `folders` those that exist."""
        for folder in filter(Path.exists, folders):
            names = (f"{DAMAGED}{folder.name}" + (f"_{number}" if number > 1 else "") for number in count(1))
            aside = next(self._root / name for name in names if not (self._root / name).exists())
            os.rename(folder, aside)
            print(
                f"Checkpoint {folder} is damaged and now {aside.name}; remove it if nobody can repair it.", flush=True
            )

    def _prune(self, known: list[Path]) -> None:
        """Deletes the checkpoints that have `keep` newer whole ones."""
        folders, oldest = published(self._root), min(map(step_of, known))
        if len(folders) <= self._keep:
            return
        whole = [f for f in folders if (f in known or step_of(f) < oldest) and looks_whole(f)]
        if len(whole) >= self._keep:
            for folder in (f for f in folders if step_of(f) < step_of(whole[self._keep - 1])):
                _remove(folder)


def _share_of(engine: Engine) -> State:
    """The part of the state that this process writes, on the CPU. Collective."""
    owners = share_out({name: shape.numel() for name, shape in engine.shapes.items()}, engine.processes.count)
    return {
        name: {kind: tensor.cpu().contiguous() for kind, tensor in tensors.items()}
        for name, tensors in engine.state(owners).items()
    }


def _write_shard(
    folder: Path, share: State, processes: Processes
) -> tuple[str, dict[str, int | str], dict[str, list[int]]]:
    """Writes this process's shard; returns its name, its record in the manifest, and the shapes of its parameters."""
    path = folder / f"shard_{processes.index:05d}-of-{processes.count:05d}.safetensors"
    save_file({f"{kind}/{name}": tensor for name, tensors in share.items() for kind, tensor in tensors.items()}, path)
    # safetensors lets nobody else read its files; the folder has the mode that the user's umask asks for.
    path.chmod(folder.stat().st_mode & 0o666)
    flush(path)
    record: dict[str, int | str] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    return path.name, record, {name: list(tensors["weight"].shape) for name, tensors in share.items()}


def _remove(folder: Path) -> None:
    """Deletes a checkpoint. It is renamed first, so that no half of it is ever found; if that fails it stays."""
    doomed = folder.with_name(f"{PARTIAL}{folder.name}")
    with suppress(OSError):
        os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
