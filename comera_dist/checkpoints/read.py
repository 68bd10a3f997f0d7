"""Checkpoints: portable, sharded, published atomically, verified when read.

A checkpoint is a folder `step_NNNNNNN` with `manifest.json` and one safetensors shard per process. Tensors are
addressed by parameter name, so any number of processes, any ZeRO stage and any later set of ranks can read them.
Nothing in a checkpoint can run code. The manifest holds a hash of itself (`manifest.py`) and of every shard. A folder
with such a name exists only once all of it is on the disk (`write.py`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from comera_dist.checkpoints.disk import disk_errors_named, folder_name, published
from comera_dist.checkpoints.manifest import Damage, Manifest
from comera_dist.checkpoints.verify import verify
from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together

REMEDY = "mend the disk or the permissions, and start the same command again"
Named = tuple[str, dict[str, Tensor]]  # a parameter's name and its tensors by kind


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on the disk; `damaged` are the newer ones that were passed over for it."""

    folder: Path
    manifest: Manifest
    processes: Processes
    damaged: tuple[Path, ...] = ()

    @property
    def run(self) -> dict[str, Any]:
        """The record that the caller of `Saver.begin` saved with the tensors."""
        run: dict[str, Any] = self.manifest["run"]
        return run

    @property
    def optimizer_step(self) -> int:
        return int(self.manifest["optimizer_step"])

    @property
    def gate_step(self) -> int:
        # Checkpoints up to November 2026 lack it: all parameters had one count then.
        return int(self.manifest.get("gate_step", self.optimizer_step))

    def load_weights(self, model: nn.Module) -> None:
        """Copies every weight into `model`. Collective. CheckpointError where names, shapes or types differ.

        Proves that every parameter was written: a model that is built for loading holds uninitialised memory.
        """
        parameters = dict(model.named_parameters())
        self._check_fits(parameters)
        together(lambda: self._copy_weights(parameters), self.processes)

    def moments(self) -> Iterator[Named]:
        """The optimizer's state: each parameter's name with its tensors by kind, such as `exp_avg`."""
        return self._read(weights=False)

    @torch.no_grad()
    def _copy_weights(self, parameters: Mapping[str, nn.Parameter]) -> None:
        unread = dict(parameters)
        for name, tensors in self._read(weights=True):
            saved, parameter = tensors.get("weight"), unread.pop(name)
            if saved is None or (saved.shape, saved.dtype) != (parameter.shape, parameter.dtype):
                raise CheckpointError(
                    f"{self.folder} does not hold {name} as {tuple(parameter.shape)} of {parameter.dtype}, which its "
                    f"manifest names; restore it from a copy"
                )
            parameter.copy_(saved)
        if unread:
            raise CheckpointError(f"{self.folder} holds no weight of {min(unread)}; restore it from a copy")

    def _read(self, weights: bool) -> Iterator[Named]:
        """The `weight` of each parameter, or all its other tensors. CheckpointError if the disk fails."""
        with disk_errors_named(f"{self.folder} cannot be read", REMEDY):
            for shard in self.manifest["files"]:
                names = [name for name, record in self.manifest["tensors"].items() if record["file"] == shard]
                with safe_open(self.folder / shard, framework="pt") as file:
                    kinds: defaultdict[str, list[str]] = defaultdict(list)
                    for kind, _, name in (key.partition("/") for key in file.keys()):  # noqa: SIM118 (it is no dict)
                        if (kind == "weight") == weights:
                            kinds[name].append(kind)
                    for name in names:
                        yield name, {kind: file.get_tensor(f"{kind}/{name}") for kind in kinds[name]}

    def _check_fits(self, parameters: Mapping[str, nn.Parameter]) -> None:
        saved = {name: tuple(record["shape"]) for name, record in self.manifest["tensors"].items()}
        wanted = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        differing = [name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name)]
        if differing:
            name = min(differing)
            raise CheckpointError(
                f"{self.folder} holds {name} as {saved.get(name, 'nothing')} and the model has "
                f"{wanted.get(name, 'nothing')} ({len(differing)} parameters differ); give the changed model another "
                f"run.name"
            )


def find_checkpoint(root: Path, processes: Processes, step: int | None = None) -> Checkpoint | None:
    """The newest undamaged checkpoint in `root`, or the one of `step`; None if there are none. Collective.

    Prints which damaged checkpoints it passes over. Raises CheckpointError if all are damaged, because a run of weeks
    must not silently start afresh, and if the checkpoint of `step` is damaged.
    """
    folders = _folders(root, processes, step)
    for place, folder in enumerate(folders):
        try:
            return Checkpoint(folder, verify(folder, processes), processes, damaged=tuple(folders[:place]))
        except Damage as damage:
            if _folders(root, processes, step) != folders:  # the run goes on, and has deleted what was read
                return find_checkpoint(root, processes, step)
            if step is not None:
                raise CheckpointError(
                    f"{folder} is damaged ({damage}); restore it from a copy, or name another step"
                ) from damage
            processes.say(f"Checkpoint {folder} is passed over: {damage}.")
    if folders:
        raise CheckpointError(
            f"all {len(folders)} checkpoints in {root} are damaged; restore one from a copy, or choose another run.name"
        )
    return None


def _folders(root: Path, processes: Processes, step: int | None) -> list[Path]:
    """The checkpoints that there are now, newest first, or the one of `step`. Collective."""

    def listed() -> list[Path]:
        with disk_errors_named(f"{root} cannot be read", REMEDY):
            return [folder for folder in published(root) if step is None or folder.name == folder_name(step)]

    folders: list[Path] = processes.from_first(together(listed, processes))
    return folders
