"""The manifest of a checkpoint: what it must hold, and the hash that proves it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comera_dist.config.moved import Moves
from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan, Resizable
from comera_dist.formats.plan import read_matrix

FORMAT = 2  # format 1, of earlier versions, has no hash of its own
MANIFEST = "manifest.json"

LARGEST = 2**63 - 1  # what an int64 tensor takes
Integer = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
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


Sizes = Positive | list[Positive]


class _Layer(Record):
    """A plan with the tag of its format; up to November 2026 without one and with the sizes of a train in `shape`."""

    __pydantic_extra__: dict[str, Sizes | bool | str] = Field(init=False)

    format: str | None = None
    shape: dict[str, Sizes] | None = None


class _Cursor(Record):
    seed: Count
    epoch: Count
    tokens: Count
    fingerprint: str


class _Objective(Record):
    target_size: float | None
    mean_loss: float
    applied: float


class _Policy(Record):
    """What the rank policy keeps: by name, counters of each gate by layer and bond, and anything else."""

    counts: dict[str, dict[str, list[list[Integer]]]] = {}


class _Ranks(Record):
    late_size: float | None
    goal: float | None
    policy: _Policy
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
    """The manifest that `file` holds, with all in its present place.

    Damage where it is not what `write_manifest` wrote, now or in an earlier version.
    """
    try:
        manifest = json.loads(file)
        is_old = manifest["format"] == 1 and "sha256" not in manifest
        if not is_old and manifest["sha256"] != _sha256(manifest):
            raise Damage(f"its {MANIFEST} does not have the sha256 that it names")
        _bring_up_to_date(manifest["run"])
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise Damage(f"its {MANIFEST} is not one: {_first(error)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damage(f"its {MANIFEST} is unreadable or of another format") from error
    for problem in _problems(manifest):
        raise Damage(f"its {MANIFEST} {problem}")
    return manifest


def _sha256(manifest: dict) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bring_up_to_date(run: Any) -> None:
    """Brings what earlier versions kept elsewhere to its place; nothing is known of `run` yet but its hash.

    Up to November 2026 the counter of the policy `threshold`, then the only one, was beside the policy.
    """
    if not isinstance(run, dict):
        return
    if isinstance(run.get("config"), dict):
        Moves().of_tree(run["config"])
    ranks = run.get("ranks")
    if isinstance(ranks, dict) and "below" in ranks:
        ranks.setdefault("policy", {"counts": {"below": ranks.pop("below")}})


def _problems(manifest: dict) -> Iterator[str]:
    """Where parts of a manifest, all of the right types, do not fit each other."""
    if manifest["optimizer_step"] > manifest["step"]:
        yield f"counts {manifest['optimizer_step']} updates in {manifest['step']} steps"
    lost = [name for name, tensor in manifest["tensors"].items() if tensor["file"] not in manifest["files"]]
    yield from (f"names no file that holds {name}" for name in lost)
    run, layers = manifest["run"], {}
    if run.get("planned", run["plan"]).keys() != run["plan"].keys():
        yield "does not describe the same layers now and at the start"
    for name, layer in [*run.get("planned", {}).items(), *run["plan"].items()]:
        try:
            layers[name] = read_matrix(layer)
        except (ConfigError, KeyError, TypeError, AttributeError) as error:
            yield f"describes {name} by a shape that cannot be ({error})"
    yield from _misfits(layers, manifest["tensors"])
    yield from _gate_problems(layers, run.get("ranks"))


def _misfits(layers: dict[str, MatrixPlan], tensors: dict) -> Iterator[str]:
    """Tensors of layers that are missing or have another shape."""
    for name, layer in layers.items():
        for part, shape in layer.tensors.items():
            if tensors.get(f"{name}.{part}", {}).get("shape") != list(shape):
                yield f"names no {part} of {name} with the shape {shape}"


def _gate_problems(layers: dict[str, MatrixPlan], ranks: dict | None) -> Iterator[str]:
    bonds = {name: list(layer.bonds) for name, layer in layers.items() if isinstance(layer, Resizable)}
    if ranks is None:
        return
    for counts in ranks["policy"].get("counts", {}).values():
        if {name: list(map(len, bond_counts)) for name, bond_counts in counts.items()} != bonds:
            yield "counts other gates than its layers have"
    if len(ranks["soft_ranks"]) != sum(map(len, bonds.values())):
        yield "has ranks of other bonds than its layers have"


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc'])) or 'it'}: {found['msg'].lower()}"
