"""Checkpoints: portable, sharded, published atomically, verified when read.

A checkpoint is a folder `step_NNNNNNN` with one safetensors shard a process and `manifest.json`. Tensors are addressed
by parameter name, so that any number of processes, any ZeRO stage and any later set of ranks can read them, and nothing
in it can run code. The manifest proves itself by a hash (`manifest.py`), and every shard by the manifest. A folder of
that name exists only when all of it does (`write.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from comera_dist.checkpoints.disk import disk_errors_named
from comera_dist.checkpoints.folders import folder_name, published
from comera_dist.checkpoints.verify import verify
from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together

REMEDY = "mend the disk or the permissions, and start the same command again"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on the disk. `run` is the record that the caller saved with it.

    `damaged` are the newer ones that were passed over for it.
    """

    folder: Path
    manifest: dict
    processes: Processes
    damaged: tuple[Path, ...] = ()

    @property
    def run(self) -> dict:
        return self.manifest["run"]

    @property
    def optimizer_step(self) -> int:
        return self.manifest["optimizer_step"]

    @property
    def gate_step(self) -> int:
        # Checkpoints up to November 2026 lack it: all parameters had one count then.
        return self.manifest.get("gate_step", self.optimizer_step)

    def load_weights(self, model: nn.Module) -> None:
        """Copies every weight into `model`. Collective. CheckpointError where names, shapes or types differ.

        Proves that every parameter was written: what a model is built with for loading is memory of any content.
        """
        parameters = dict(model.named_parameters())
        self._check_fits(parameters)
        together(lambda: self._copy_weights(parameters), self.processes)

    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Name and what the optimizer kept of each parameter in turn, tensors by kind."""
        yield from self._read(weights=False)

    @torch.no_grad()
    def _copy_weights(self, parameters: dict[str, nn.Parameter]) -> None:
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

    def _read(self, weights: bool) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Of each parameter its `weight`, or all other kinds of tensors. CheckpointError where the disk fails."""
        with disk_errors_named(f"{self.folder} cannot be read", REMEDY):
            yield from self._read_shards(weights)

    def _read_shards(self, weights: bool) -> Iterator[tuple[str, dict[str, Tensor]]]:
        tensors = self.manifest["tensors"]
        for shard in self.manifest["files"]:
            with safe_open(self.folder / shard, framework="pt") as file:
                kinds: dict[str, list[str]] = {}
                for kind, _, name in (key.partition("/") for key in file.keys()):  # noqa: SIM118 (it is no dict)
                    if (kind == "weight") == weights:
                        kinds.setdefault(name, []).append(kind)
                for name in (n for n, record in tensors.items() if record["file"] == shard):
                    yield name, {kind: file.get_tensor(f"{kind}/{name}") for kind in kinds.get(name, ())}

    def _check_fits(self, parameters: dict[str, nn.Parameter]) -> None:
        saved = {name: tuple(record["shape"]) for name, record in self.manifest["tensors"].items()}
        wanted = {name: tuple(p.shape) for name, p in parameters.items()}
        differing = sorted(n for n in saved.keys() | wanted.keys() if saved.get(n) != wanted.get(n))
        if differing:
            name = differing[0]
            raise CheckpointError(
                f"{self.folder} holds {name} as {saved.get(name, 'nothing')} and the model has "
                f"{wanted.get(name, 'nothing')} ({len(differing)} parameters differ); give the changed model another "
                f"run.name"
            )


def find_checkpoint(root: Path, processes: Processes, step: int | None = None) -> Checkpoint | None:
    """The newest undamaged checkpoint, or that of `step`; None where there has never been one. Collective.

    Says which damaged ones it passed over. CheckpointError where all are damaged, because a run of weeks must not start
    afresh by itself, and where the one of `step` is.
    """
    folders = processes.from_first(together(lambda: _list(root), processes))
    if step is not None:
        folders = [folder for folder in folders if folder.name == folder_name(step)]
    for place, folder in enumerate(folders):
        manifest, problem = verify(folder, processes)
        if problem is None:
            return Checkpoint(folder, manifest, processes, damaged=tuple(folders[:place]))
        if step is not None:
            raise CheckpointError(f"{folder} is damaged ({problem}); restore it from a copy, or name another step")
        processes.say(f"Checkpoint {folder} is passed over: {problem}.")
    if folders:
        raise CheckpointError(
            f"all {len(folders)} checkpoints in {root} are damaged; restore one from a copy, or choose another run.name"
        )
    return None


def _list(root: Path) -> list[Path]:
    with disk_errors_named(f"{root} cannot be read", REMEDY):
        return published(root)
