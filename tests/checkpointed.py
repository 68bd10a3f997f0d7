"""Checkpoints of a tiny made-up engine, and damage to them."""

import json
import os
from types import SimpleNamespace

import torch
from listening import Listening
from torch import nn

from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.read import find_checkpoint
from comera_dist.checkpoints.write import Saver
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.tensor_train.shapes import plan_tt
from comera_dist.runtime.processes import alone

# A dense layer 4 → 3, and a layer 2 → 5 as a train of two cores.
SHAPES = {"a.weight": (3, 4), "b.core_1": (1, 2, 1), "b.core_2": (1, 5, 1), "b.gate_1": (1,)}


def engine(value: float):
    """Stands for an engine: parameters and their moments, all numbers near `value`."""
    state = {
        name: {kind: torch.full(shape, value + i) for i, kind in enumerate(("weight", "exp_avg", "exp_avg_sq"))}
        for name, shape in SHAPES.items()
    }
    shapes = {name: tensors["weight"].shape for name, tensors in state.items()}
    return SimpleNamespace(
        processes=alone(),
        shapes=shapes,
        state=lambda owners, device=None: (
            {name: {kind: tensor.clone() for kind, tensor in tensors.items()} for name, tensors in state.items()}
            if owners
            else state
        ),
        optimizer_step=7,
        gate_step=3,
        check_weights=lambda: None,
    )


def record(step):
    """The record that a session saves with the tensors, for the layers of SHAPES."""
    return {
        "config": {"model": {"kind": "decoder"}, "optim": {"lr": 1e-05}},
        "plan": {
            "a": DensePlan(4, 3).to_json(),
            "b": plan_tt(2, 5, order=1, rank=1, outer_rank=1).to_json(),
        },
        "cursor": {"seed": 1, "epoch": 0, "tokens": step, "fingerprint": "é"},
        "wall_seconds": 0.1,
        "ranks": {
            "late_size": None,
            "goal": 1.5,
            "policy": {"counts": {"below": {"b": [[0]]}}},
            "soft_ranks": [1.0],
            "objective": {"target_size": None, "mean_loss": 4.0, "applied": 0.5},
        },
    }


def save(root, step, keep=9, resumed=None, keep_every=0):
    save_with(Saver(root, Kept(keep, keep_every), resumed), step)


def save_with(saver, step, value=None, **more):
    """Saves numbers near `value`, or near the step; the record has `more` entries."""
    saver.begin(step, engine(float(step if value is None else value)), record(step) | more)
    assert saver.wait() == step


def model():
    module = nn.Module()
    module.a, module.b = nn.Linear(4, 3, bias=False), nn.Module()
    for name in ("core_1", "core_2", "gate_1"):
        module.b.register_parameter(name, nn.Parameter(torch.zeros(SHAPES[f"b.{name}"])))
    return module


def newest(root):
    processes = Listening()
    return find_checkpoint(root, processes), processes.said


def shard(root, step):
    return next((root / f"step_{step:07d}").glob("*.safetensors"))


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def rewrite(root, step, change):
    """Makes a manifest one of format 1, which has no hash of its own, and applies `change` to it."""
    path = root / f"step_{step:07d}/manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256", None)
    manifest["format"] = 1
    change(manifest)
    path.write_text(json.dumps(manifest))


def put(value, *path):
    def change(manifest):
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


def steps_in(root):
    return sorted(path.name for path in root.iterdir() if "step" in path.name)
