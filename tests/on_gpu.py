"""Scenarios of tests/distributed on a GPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from support import ROOT, environment

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs and runs on a GPU need CUDA; there is none"),
]
STATIC = "train.cuda_graphs=true"
STAGES = (0, 1, 2)
# Cuts at steps 6 and 10 of 14.
ADAPTING = [
    "ranks.adapt=true",
    "ranks.layers=['*_proj']",
    "ranks.sync_every=2",
    "ranks.policy.patience=1",
    "ranks.target_compression=1.6",
    "tensor.rank=6",
    "optim.lr=0.01",
    "train.steps=14",
]


def on_gpu(scenario, **arguments):
    """What a scenario of tests/distributed returns in a process of its own on the first GPU."""
    extra = {
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "DS_ACCELERATOR": "cuda",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS is not deterministic on several streams
    }
    command = [sys.executable, str(ROOT / "tests/distributed/worker.py"), scenario, json.dumps(arguments)]
    done = subprocess.run(command, env=environment(**extra), capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, f"{scenario} failed:\n{done.stdout}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])
