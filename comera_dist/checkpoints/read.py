"""Checkpoints: portable, sharded, published atomically, verified when read.

A checkpoint is a folder `step_NNNNNNN` with one safetensors shard a process and `manifest.json`. Tensors are addressed
by parameter name, so that any number of processes, any ZeRO stage and any later set of ranks can read them, and nothing
in it can run code. The manifest proves itself by a hash (`manifest.py`), and every shard by the manifest. A folder of
that name exists only when all of it does (`write.py`).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from comera_dist.checkpoints.disk import disk_errors_named, problem_of
from comera_dist.checkpoints.manifest import MANIFEST, Damage, read_manifest
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together

REMEDY = "mend the disk or the permissions, and start the same command again"
FOLDER = re.compile("step_([0-9]{7,})")


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
        """Name and what the optimizer kept of each parameter in turn: of AdamW `exp_avg` and `exp_avg_sq`."""
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
        manifest, problem = _verify(folder, processes)
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


def published(root: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    try:
        with os.scandir(root) as entries:
            folders = [Path(entry) for entry in entries if FOLDER.fullmatch(entry.name) and entry.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(folders, key=step_of, reverse=True)


def folder_name(step: int) -> str:
    return f"step_{step:07d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def newest_step(root: Path) -> int:
    """Step of the newest checkpoint that looks whole; 0 where there is none."""
    return next((step_of(folder) for folder in published(root) if looks_whole(folder)), 0)


def looks_whole(folder: Path) -> bool:
    """Whether the manifest is undamaged and all files have their sizes: what can be known without reading them."""
    try:
        files = _manifest_of(folder)["files"]
        return all((folder / name).stat().st_size == record["bytes"] for name, record in files.items())
    except (Damage, OSError):
        return False


def _verify(folder: Path, processes: Processes) -> tuple[dict | None, str | None]:
    """The manifest, and why the checkpoint cannot be used, or None.

    Collective: the first process reads the manifest for all, and each process hashes its share of the files.
    """
    manifest, problem = processes.from_first(_manifest_or_problem(folder))
    files = [] if manifest is None else sorted(manifest["files"])
    problems = [_file_damage(folder / name, manifest) for name in files[processes.index :: processes.count]]
    found = next(filter(None, [problem, *problems]), None)
    return manifest, next(filter(None, processes.gather(found)), None)


def _manifest_or_problem(folder: Path) -> tuple[dict | None, str | None]:
    try:
        return _manifest_of(folder), None
    except Damage as damage:
        return None, str(damage)


def _manifest_of(folder: Path) -> dict:
    """Raises Damage."""
    try:
        manifest = read_manifest((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damage(f"its {MANIFEST} is missing") from None
    except OSError as error:
        raise Damage(f"its {MANIFEST} cannot be read ({problem_of(error)})") from error
    if manifest["step"] != step_of(folder):
        raise Damage(f"its {MANIFEST} is of step {manifest['step']}")
    return manifest


def _file_damage(path: Path, manifest: dict) -> str | None:
    record = manifest["files"][path.name]
    try:
        if path.stat().st_size != record["bytes"]:
            return f"{path.name} has {path.stat().st_size} bytes instead of {record['bytes']}"
        if file_sha256(path) != record["sha256"]:
            return f"{path.name} does not have the sha256 of its manifest"
        return _content_damage(path, manifest)
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({problem_of(error)})"
    except SafetensorError:
        return f"{path.name} is not a safetensors file"


def _content_damage(path: Path, manifest: dict) -> str | None:
    """Where the weights of a shard are not those that the manifest names."""
    named = {f"weight/{n}": tensor["shape"] for n, tensor in manifest["tensors"].items() if tensor["file"] == path.name}
    with safe_open(path, framework="pt") as file:
        weights = {key: file.get_slice(key) for key in file.keys() if key.startswith("weight/")}  # noqa: SIM118
        held = {key: part.get_shape() for key, part in weights.items() if part.get_dtype() == "F32"}
    differing = sorted(key for key in named.keys() | weights.keys() if named.get(key) != held.get(key))
    return f"{path.name} does not hold {differing[0]} as its manifest says" if differing else None
