"""Checkpoints are written while the run goes on, published atomically, and deleted when enough newer ones are whole.

A save copies the state into host memory; the step waits for nothing else. A thread of each process writes its shard
under `.tmp` and hashes it as read back from the disk. When all have done so, a thread of the first process flushes and
renames the folder. Only then does `LATEST` move and an older checkpoint go. If the disk fails on one process, all stop,
and the earlier checkpoints stay.
"""

import copy
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from comera_dist.checkpoints.background import in_background
from comera_dist.checkpoints.disk import disk_errors_named, folder_name, step_of
from comera_dist.checkpoints.manifest import MANIFEST, write_manifest
from comera_dist.checkpoints.prune import PARTIAL, Kept, partial_of, prune, set_aside
from comera_dist.checkpoints.read import Checkpoint
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.sharing import share_out
from comera_dist.runtime.together import together
from comera_dist.storage.files import flush, write_whole

T = TypeVar("T")
LATEST = "LATEST"
State = dict[str, dict[str, Tensor]]  # tensors by parameter and kind: `weight`, and those of the optimizer
# A shard's name, its record in the manifest, and the shapes of its parameters.
Shard = tuple[str, dict[str, int | str], dict[str, list[int]]]


@dataclass
class _Save:
    """A save on its way: first `shard` is written on every process, then `publication` on the first."""

    target: Path
    processes: Processes
    record: dict[str, Any]
    shard: Future[Shard]
    publication: Future[None] | None = None

    @property
    def partial(self) -> Path:
        return partial_of(self.target)

    @property
    def work(self) -> Future[Any]:
        """This process's part of the present half."""
        return self.shard if self.publication is None else self.publication


class Savable(Protocol):
    """What a checkpoint holds; an Engine is one."""

    @property
    def processes(self) -> Processes:
        """Those that hold the state."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of each parameter by name."""

    @property
    def optimizer_step(self) -> int:
        """Steps that the optimizer has counted."""

    @property
    def gate_step(self) -> int:
        """Steps that it has counted for gates."""

    def check_weights(self) -> None:
        """TrainingError if processes hold different weights. Collective."""

    def state(self, owners: dict[str, int] | None = None, device: torch.device | None = None) -> State:
        """The tensors on `device` of the parameters that this process owns, by `owners`, or of all. Collective.

        Nothing changes them while they are written.
        """


class Saver:
    """Publishes the checkpoints of one start of a run in `root`; `resumed` is the checkpoint that it resumes from.

    Each save deletes the checkpoints that are not to be `kept`. A checkpoint that was passed over as damaged is renamed
    to `damaged_step_N`: the next start must not find it before newer ones, and a person may be able to repair it.
    Before a checkpoint is published, `logs` are on the disk to stay: a resume does not log the steps before it again.
    """

    def __init__(self, root: Path, kept: Kept, resumed: Checkpoint | None = None, logs: Sequence[Path] = ()):
        self._root, self._kept, self._logs = root, kept, logs
        self._known = [] if resumed is None else [resumed.folder]
        self._damaged = () if resumed is None else resumed.damaged
        self._save: _Save | None = None

    def begin(self, step: int, engine: Savable, run: dict[str, Any]) -> None:
        """Begins to save the engine's state and the caller's JSON record `run` as `root/step_NNNNNNN`. Collective.

        Waits for an earlier save. Does nothing if this start has saved or resumed `step`. Saves nothing and raises
        TrainingError if processes hold different weights, CheckpointError if the disk fails.
        """
        self.wait()
        target = self._root / folder_name(step)
        if target in self._known:
            return
        processes = engine.processes
        engine.check_weights()
        counts = {"step": step, "optimizer_step": engine.optimizer_step, "gate_step": engine.gate_step}
        partial = partial_of(target)
        together(self._on_disk(target, lambda: self._make(partial) if processes.is_first else None), processes)
        share = _share_of(engine)
        shard = in_background(self._on_disk(target, lambda: _write_shard(partial, share, processes)))
        # A copy, because the run goes on and changes its record.
        self._save = _Save(target, processes, {**counts, "run": copy.deepcopy(run)}, shard)

    def poll(self) -> int | None:
        """The step of the save that has ended since the last call. Collective. Raises CheckpointError."""
        save = self._save
        if save is None or save.processes.sum([save.work.done()])[0] < save.processes.count:
            return None
        try:
            if save.publication is None:
                shards = save.processes.gather(together(save.shard.result, save.processes))
                save.publication = in_background(self._on_disk(save.target, lambda: self._publish(save, shards)))
                return None
            together(save.publication.result, save.processes)
        except CheckpointError:
            self._save = None
            if save.processes.is_first:
                shutil.rmtree(save.partial, ignore_errors=True)
            raise
        self._known.append(save.target)
        self._save = None
        return step_of(save.target)

    def wait(self) -> int | None:
        """The step of the save under way, once it has ended; None if there was none. Collective."""
        ended = None
        while self._save is not None:
            # Not a collective, which would count as progress: the watchdog must end a process whose disk hangs.
            self._save.work.exception()
            ended = self.poll()
        return ended

    def _on_disk(self, target: Path, work: Callable[[], T]) -> Callable[[], T]:
        """`work`, whose errors of the disk become a CheckpointError."""

        def carry_out() -> T:
            with disk_errors_named(
                f"saving {target} failed",
                f"checkpoints of earlier steps are as they were: free space or mend the permissions of {self._root}, "
                f"and start the same command again",
            ):
                return work()

        return carry_out

    def _make(self, partial: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for leftover in self._root.glob(f"{PARTIAL}*"):  # of a save or a deletion that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()

    def _publish(self, save: _Save, shards: list[Shard]) -> None:
        """Makes the shards a checkpoint, on the first process."""
        if not save.processes.is_first:
            return
        files = {name: file for name, file, _ in shards}
        tensors = {key: {"file": name, "shape": shape} for name, _, shapes in shards for key, shape in shapes.items()}
        manifest = write_manifest({**save.record, "files": files, "tensors": tensors})
        write_whole(save.partial / MANIFEST, manifest, flushed=True)
        for log in filter(Path.exists, self._logs):
            flush(log)
        set_aside(self._root, [save.target])
        os.rename(save.partial, save.target)
        flush(self._root)
        # The run may have saved again the step of a damaged one, which has that name no more.
        set_aside(self._root, [folder for folder in self._damaged if folder != save.target])
        self._damaged = ()
        write_whole(self._root / LATEST, f"{save.target.name}\n", flushed=True)
        prune(self._root, self._kept, [*self._known, save.target])

    def prune(self) -> None:
        """Deletes the checkpoints that are not to be kept, after the last save has ended."""
        prune(self._root, self._kept, self._known)


def _share_of(engine: Savable) -> State:
    """A copy of the part of the state that this process writes, on the CPU. Collective."""
    owners = share_out({name: shape.numel() for name, shape in engine.shapes.items()}, engine.processes.count)
    # Tensor by tensor straight to the CPU: a GPU that has room for a step has none for a second copy of the state.
    return {
        name: {kind: tensor.contiguous() for kind, tensor in tensors.items()}
        for name, tensors in engine.state(owners, torch.device("cpu")).items()
    }


def _write_shard(folder: Path, share: State, processes: Processes) -> Shard:
    """Writes this process's shard."""
    path = folder / f"shard_{processes.index:05d}-of-{processes.count:05d}.safetensors"
    save_file({f"{kind}/{name}": tensor for name, tensors in share.items() for kind, tensor in tensors.items()}, path)
    # safetensors lets nobody else read its files; the folder has the mode that the user's umask asks for.
    path.chmod(folder.stat().st_mode & 0o666)
    flush(path)
    record: dict[str, int | str] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    return path.name, record, {name: list(tensors["weight"].shape) for name, tensors in share.items()}
