"""Checkpoints: portable, sharded, published atomically, verified when read.

A checkpoint is a folder `step_NNNNNNN` with one safetensors shard a process and `manifest.json`. Tensors are addressed
by parameter name, so that any number of processes, any ZeRO stage and any later set of ranks can read them, and nothing
in it can run code. A folder of that name exists only when all of it does: it is written under `.tmp`, hashed as read
back from the disk, flushed, renamed, and only then does `LATEST` move and an older checkpoint go.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from comera_dist.data.shards import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.processes import Processes, share_out

FORMAT = 1
LATEST = "LATEST"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on the disk. `run` is the record that the caller saved with it."""

    folder: Path
    manifest: dict

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
        """Copies every weight into `model`. CheckpointError where names or shapes differ."""
        parameters = dict(model.named_parameters())
        self._check_fits(parameters)
        with torch.no_grad():
            for name, tensors in self._read(weights=True):
                parameters[name].copy_(tensors["weight"])

    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Name and what the optimizer kept of each parameter in turn: of AdamW `exp_avg` and `exp_avg_sq`."""
        return self._read(weights=False)

    def _read(self, weights: bool) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Of each parameter its `weight`, or all other kinds of tensors."""
        tensors = self.manifest["tensors"]
        for shard in self.manifest["files"]:
            with safe_open(self.folder / shard, framework="pt") as file:
                kinds: dict[str, list[str]] = {}
                for kind, _, name in (key.partition("/") for key in file.keys()):  # noqa: SIM118 (it is no dict)
                    if (kind == "weight") == weights:
                        kinds.setdefault(name, []).append(kind)
                for name in (n for n, record in tensors.items() if record["file"] == shard):
                    yield name, {kind: file.get_tensor(f"{kind}/{name}") for kind in kinds[name]}

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


def save_checkpoint(root: Path, step: int, engine: Engine, run: dict, keep: int) -> None:
    """Publishes `root/step_NNNNNNN` with the engine's state and the caller's JSON record `run`. Collective."""
    processes = engine.processes
    target = root / folder_name(step)
    partial = root / f".tmp-{target.name}"
    if processes.is_first:
        shutil.rmtree(partial, ignore_errors=True)  # what a killed save left
        partial.mkdir(parents=True)
    processes.barrier()
    shards = processes.gather(_write_shard(partial, engine))
    if processes.is_first:
        manifest = {
            "format": FORMAT,
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
        _write_flushed(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        _publish(partial, target)
        _prune(root, keep)
    processes.barrier()


def _write_shard(folder: Path, engine: Engine) -> dict:
    """Writes the tensors that fall to this process; returns what the manifest says of them."""
    processes = engine.processes
    owners = share_out({name: shape.numel() for name, shape in engine.shapes.items()}, processes.count)
    tensors, shapes = {}, {}
    for name, state in engine.state(owners).items():
        shapes[name] = list(state["weight"].shape)
        tensors |= {f"{kind}/{name}": t.cpu().contiguous() for kind, t in state.items()}
    file = f"shard_{processes.index:05d}-of-{processes.count:05d}.safetensors"
    save_file(tensors, folder / file)
    _flush(folder / file)
    return {
        "file": file,
        "shapes": shapes,
        "bytes": (folder / file).stat().st_size,
        "sha256": file_sha256(folder / file),
    }


def _publish(partial: Path, target: Path) -> None:
    _flush(partial)
    shutil.rmtree(target, ignore_errors=True)  # a damaged namesake that a resume has passed over
    os.rename(partial, target)
    _flush(target.parent)
    pointer = target.parent / f".tmp-{LATEST}"
    _write_flushed(pointer, f"{target.name}\n".encode())
    os.replace(pointer, target.parent / LATEST)
    _flush(target.parent)


def _prune(root: Path, keep: int) -> None:
    for folder in published(root)[keep:]:
        shutil.rmtree(folder, ignore_errors=True)


def find_checkpoint(root: Path, processes: Processes, step: int | None = None) -> Checkpoint | None:
    """The newest undamaged checkpoint, or that of `step`; None where there has never been one. Collective.

    Says which damaged ones it passed over. CheckpointError where all are damaged: a run of weeks must not start afresh
    by itself.
    """
    folders = processes.from_first([str(folder) for folder in published(root)])
    if step is not None:
        folders = [folder for folder in folders if Path(folder).name == folder_name(step)]
    for folder in map(Path, folders):
        problem = _damage(folder, processes)
        if problem is None:
            return Checkpoint(folder, json.loads((folder / MANIFEST).read_text()))
        processes.say(f"Checkpoint {folder} is passed over: {problem}.")
    if folders:
        raise CheckpointError(
            f"all {len(folders)} checkpoints in {root} are damaged; restore one from a copy, or choose another run.name"
        )
    return None


def published(root: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    folders = [p for p in root.glob("step_*") if p.is_dir() and p.name[5:].isdigit()]
    return sorted(folders, key=lambda p: int(p.name[5:]), reverse=True)


def newest_step(root: Path) -> int:
    """Step of the newest checkpoint, verified or not; 0 where there is none."""
    folders = published(root)
    return int(folders[0].name[5:]) if folders else 0


def _damage(folder: Path, processes: Processes) -> str | None:
    """Why the checkpoint cannot be used, or None. Collective: the files are hashed by all processes, each its share."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = sorted(manifest["files"].items())
        known = manifest["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        files, known = [], False
    found = None if known else f"its {MANIFEST} is missing, unreadable or of another format"
    for file, record in files[processes.index :: processes.count]:
        found = found or _file_damage(folder / file, record)
    return next((problem for problem in processes.gather(found) if problem), None)


def _file_damage(path: Path, record: dict) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != record["bytes"]:
        return f"{path.name} has {path.stat().st_size} bytes instead of {record['bytes']}"
    if file_sha256(path) != record["sha256"]:
        return f"{path.name} does not have the sha256 of its manifest"
    try:
        with safe_open(path, framework="pt"):
            return None
    except SafetensorError:
        return f"{path.name} is not a safetensors file"


def folder_name(step: int) -> str:
    return f"step_{step:07d}"


def _write_flushed(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _flush(path)


def _flush(path: Path) -> None:
    """Forces a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
