"""The manifest of a checkpoint: what it must hold, and the hash that proves it."""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comera_dist.errors import ConfigError
from comera_dist.models.plan import LayerPlan

FORMAT = 2  # format 1, of earlier versions, has no hash of its own
MANIFEST = "manifest.json"

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Shard = Annotated[str, Field(pattern=r"^shard_[0-9]{5,}-of-[0-9]{5,}\.safetensors$")]


class Record(BaseModel):
    """A part of the manifest; later versions may add keys."""

    model_config = ConfigDict(strict=True, extra="allow")


class _File(Record):
    bytes: Count
    sha256: Sha256


class _Tensor(Record):
    file: Shard
    shape: list[Count]


class _Layer(Record):
    inputs: Positive
    outputs: Positive
    shape: dict[str, int | list[int]] | None
    is_embedding: bool
    is_removed: bool = False


class _Cursor(Record):
    seed: Count
    epoch: Count
    tokens: Count
    fingerprint: str


class _Objective(Record):
    target_size: float | None
    mean_loss: float
    applied: float


class _Ranks(Record):
    late_size: float | None
    goal: float | None
    below: dict[str, list[list[int]]]
    soft_ranks: list[float]
    objective: _Objective


class _Run(Record):
    """What the session saves with the tensors."""

    config: dict[str, dict[str, Any]]
    plan: dict[str, _Layer]
    planned: dict[str, _Layer] = {}
    cursor: _Cursor
    wall_seconds: Annotated[float, Field(ge=0)]
    wandb_id: str | None = None
    ranks: _Ranks | None = None


class _Manifest(Record):
    format: Literal[1, 2]
    step: Positive
    optimizer_step: Count
    gate_step: Count = 0  # absent up to November 2026: gates had the count of the optimizer then
    files: dict[Shard, _File]
    tensors: dict[str, _Tensor]
    run: _Run


class Damage(Exception):
    """Why a checkpoint cannot be used: the end of a sentence that begins with its name."""


def write_manifest(content: dict) -> bytes:
    """`content` as a file, with format and hash. Damage where it is nothing that can be read again."""
    manifest = json.loads(json.dumps({"format": FORMAT, **content}))  # tuples and keys become those that are read
    file = json.dumps({"sha256": _sha256(manifest), **manifest}, indent=1).encode()
    read_manifest(file)
    return file


def read_manifest(file: bytes) -> dict:
    """The manifest that `file` holds; Damage where it is not what `write_manifest` wrote, now or in format 1."""
    try:
        manifest = json.loads(file)
        is_old = manifest["format"] == 1 and "sha256" not in manifest
        if not is_old and manifest["sha256"] != _sha256(manifest):
            raise Damage(f"its {MANIFEST} does not have the sha256 that it names")
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise Damage(f"its {MANIFEST} is not one: {_first(error)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damage(f"its {MANIFEST} is unreadable or of another format") from error
    _check_plans(manifest["run"])
    _check_consistent(manifest)
    return manifest


def _sha256(manifest: dict) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_plans(run: dict) -> None:
    for name, layer in [*run["plan"].items(), *run.get("planned", {}).items()]:
        try:
            LayerPlan.from_json(layer)
        except (ConfigError, KeyError, TypeError) as error:
            raise Damage(f"its {MANIFEST} describes {name} by a shape that cannot be ({error})") from error


def _check_consistent(manifest: dict) -> None:
    """Damage where a tensor has no file, a layer no tensor, or the counts of steps cannot be."""
    tensors, plan = manifest["tensors"], manifest["run"]["plan"]
    lost = next((name for name, tensor in tensors.items() if tensor["file"] not in manifest["files"]), None)
    if lost is not None:
        raise Damage(f"its {MANIFEST} names no file that holds {lost}")
    layers = {name.rpartition(".")[0] for name in tensors}
    missing = next((name for name, layer in plan.items() if name not in layers and not layer.get("is_removed")), None)
    if missing is not None:
        raise Damage(f"its {MANIFEST} names no tensor of {missing}")
    if manifest["optimizer_step"] > manifest["step"]:
        raise Damage(f"its {MANIFEST} counts {manifest['optimizer_step']} updates in {manifest['step']} steps")


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc'])) or 'it'}: {found['msg'].lower()}"
