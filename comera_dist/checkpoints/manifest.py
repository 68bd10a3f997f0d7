"""The manifest of a checkpoint: the schema of its content, and the hash that proves it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from comera_dist.config.moved import Moves
from comera_dist.errors import CheckpointError, ConfigError
from comera_dist.formats.base import MatrixPlan, Resizable
from comera_dist.formats.plan import read_matrix

Manifest = dict[str, Any]  # JSON that has passed `read_manifest`

FORMAT = 2  # format 1, of earlier versions, has no hash of its own
MANIFEST = "manifest.json"

LARGEST = 2**63 - 1  # the largest int64: counters become int64 tensors
Integer = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
Sizes = Positive | list[Positive]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Shard = Annotated[str, Field(pattern=r"^shard_[0-9]{5,}-of-[0-9]{5,}\.safetensors$")]


class _Record(BaseModel):
    """A part of the manifest; later versions may add keys."""

    model_config = ConfigDict(strict=True, extra="allow")


class _File(_Record):
    bytes: Count
    sha256: Sha256


class _Tensor(_Record):
    file: Shard
    shape: list[Count]


class _Layer(_Record):
    """A plan with the tag of its format; up to November 2026 without one and with the sizes of a train in `shape`."""

    __pydantic_extra__: dict[str, Integer | list[Integer] | bool | str] = Field(init=False)

    format: str | None = None
    shape: dict[str, Sizes] | None = None


class _Cursor(_Record):
    seed: Count
    epoch: Count
    tokens: Count
    fingerprint: str


class _Objective(_Record):
    target_size: float | None
    mean_loss: float
    applied: float


class _Policy(_Record):
    """State of the rank policy: named counters of each gate by layer and bond, and any other keys."""

    counts: dict[str, dict[str, list[list[Integer]]]] = {}


class _Ranks(_Record):
    late_size: float | None
    goal: float | None
    policy: _Policy
    soft_ranks: list[float]
    objective: _Objective


class _Unlogged(_Record):
    loss: float
    grad_norm: float
    lr: float
    seconds: list[Annotated[list[float], Field(min_length=2, max_length=2)]]
    rows: Positive | None = None  # absent in earlier versions, like the following keys
    flops: Annotated[float, Field(ge=0)] | None = None
    targets: Count | None = None


class _Watch(_Record):
    losses: list[float]
    bad_in_a_row: Count


class _StopEarly(_Record):
    best: float | None
    best_step: Count | None = None  # absent in earlier versions
    fruitless: Count
    judged_step: Count


class _Run(_Record):
    """The record that the session saves with the tensors."""

    config: dict[str, dict[str, Any]]
    plan: dict[str, _Layer]
    planned: dict[str, _Layer] = {}
    cursor: _Cursor
    wall_seconds: Annotated[float, Field(ge=0)]
    ranks: _Ranks | None = None
    vocabulary: dict[str, str | None] = {}  # absent in earlier versions, like the following keys
    unlogged: _Unlogged | None = None
    watch: _Watch | None = None
    stop_early: _StopEarly | None = None
    passed_over: Count = 0


class _Manifest(_Record):
    format: Literal[1, 2]
    step: Count  # 0 of weights that were not trained here
    optimizer_step: Count
    gate_step: Count = 0  # absent up to November 2026: gates had the count of the optimizer then
    files: dict[Shard, _File]
    tensors: dict[str, _Tensor]
    run: _Run


class Damage(CheckpointError):
    """Why a checkpoint cannot be used: the end of a sentence that begins with the checkpoint's name."""


def write_manifest(content: Manifest) -> bytes:
    """The content of the manifest's file: `content` with format and hash.

    Raises CheckpointError if it could not be read again: a part from outside may have a plan or a state of other types.
    """
    try:
        # Hashed as it will be read: tuples are lists.
        manifest = json.loads(json.dumps({"format": FORMAT, **content}))
        file = json.dumps({"sha256": _sha256(manifest), **manifest}, indent=1).encode()
        read_manifest(file)
    except (TypeError, Damage) as error:
        raise CheckpointError(
            f"no run could resume from this checkpoint ({error}); correct the part of your own that it describes"
        ) from error
    return file


def read_manifest(file: bytes) -> Manifest:
    """The manifest in `file`, keys of earlier versions at their present places.

    Raises Damage unless `write_manifest` of this or an earlier version wrote it.
    """
    try:
        manifest: Manifest = json.loads(file)
        is_old = manifest["format"] == 1 and "sha256" not in manifest
        if not is_old and manifest["sha256"] != _sha256(manifest):
            raise Damage(f"its {MANIFEST} does not have the sha256 that it names")
        _bring_up_to_date(manifest["run"])
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"])) or "it"
        raise Damage(f"its {MANIFEST} is not one: {place}: {found['msg'].lower()}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damage(f"its {MANIFEST} is unreadable or of another format") from error
    for problem in _problems(manifest):
        raise Damage(f"its {MANIFEST} {problem}")
    return manifest


def _sha256(manifest: Manifest) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bring_up_to_date(run: Any) -> None:
    """Moves keys of earlier versions to their present places, before the types in `run` are checked.

    Up to November 2026 the counter of the policy `threshold`, the only one at that time, was beside the policy.
    """
    if not isinstance(run, dict):
        return
    if isinstance(run.get("config"), dict):
        Moves().of_tree(run["config"])
    ranks = run.get("ranks")
    if isinstance(ranks, dict) and "below" in ranks:
        ranks.setdefault("policy", {"counts": {"below": ranks.pop("below")}})


def _problems(manifest: Manifest) -> Iterator[str]:
    """Contradictions between parts of a manifest whose types are right."""
    run, tensors, layers = manifest["run"], manifest["tensors"], {}
    if manifest["optimizer_step"] > manifest["step"]:
        yield f"counts {manifest['optimizer_step']} updates in {manifest['step']} steps"
    for name, tensor in tensors.items():
        if tensor["file"] not in manifest["files"]:
            yield f"names no file that holds {name}"
    if run.get("planned", run["plan"]).keys() != run["plan"].keys():
        yield "does not describe the same layers now and at the start"
    for name, layer in [*run.get("planned", {}).items(), *run["plan"].items()]:
        try:
            layers[name] = read_matrix(layer)  # in the end those of `plan`
        except (ConfigError, KeyError, TypeError, AttributeError) as error:
            yield f"describes {name} by a shape that cannot be ({error})"
    for name, matrix in layers.items():
        for part, shape in matrix.tensors.items():
            if tensors.get(f"{name}.{part}", {}).get("shape") != list(shape):
                yield f"names no {part} of {name} with the shape {shape}"
    if run.get("ranks") is not None:
        yield from _gate_problems(layers, run["ranks"])


def _gate_problems(layers: dict[str, MatrixPlan], ranks: dict[str, Any]) -> Iterator[str]:
    bonds = {name: list(layer.bonds) for name, layer in layers.items() if isinstance(layer, Resizable)}
    for counts in ranks["policy"].get("counts", {}).values():
        if {name: list(map(len, bond_counts)) for name, bond_counts in counts.items()} != bonds:
            yield "counts other gates than its layers have"
    if len(ranks["soft_ranks"]) != sum(map(len, bonds.values())):
        yield "has ranks of other bonds than its layers have"
