"""A change without numeric intent reproduces the committed losses (on any CPU, to its rounding)."""

import json

import pytest
from forked import run_processes
from support import ROOT, losses, tiny_run

pytestmark = pytest.mark.distributed
GOLDEN = ROOT / "tests/golden/tiny_losses.json"


def test_losses_are_the_committed_ones(tiny_corpus, tmp_path):
    """After a change that is meant to alter numbers, write the new losses to the file and say so in the commit."""
    run = tiny_run(tiny_corpus, tmp_path, "golden", "model.layers=2", "train.steps=20", "optim.lr=1e-2")
    run_processes(1, "train_runs", runs=[run])
    assert losses(tmp_path, "golden") == pytest.approx(json.loads(GOLDEN.read_text()), rel=2e-4)
