"""Every kind of model trains like the decoder: on several processes, resumed, with ranks that adapt and are cut."""

import json

import pytest
import torch
from forked import run_processes
from support import WORKLOADS, cut_back, losses, make_clicks, make_pairs, metrics, saved_tensors

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
KINDS = tuple(WORKLOADS)
STAGES = (1, 3)
# Early stage to step 4, late stage with cuts until step 10.
ADAPTING = [
    "ranks.adapt=true",
    "ranks.sync_every=2",
    "ranks.policy.patience=1",
    "ranks.late_end=0.7",
    "ranks.target_fraction=0.7",
    "optim.lr=0.01",
    "train.steps=14",
    "checkpoint.every=4",
    "checkpoint.keep=99",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Overrides of an adapting run by kind and name, in a directory of this module."""
    directory = tmp_path_factory.mktemp("workloads")
    pairs, clicks = make_pairs(directory / "pairs"), make_clicks(directory / "clicks")

    def overrides(kind: str, name: str, *more: str) -> list[str]:
        corpus = clicks if kind == "dlrm" else pairs
        place = [f"data.corpus={corpus}", f"run.directory={directory}", f"run.name={kind}_{name}"]
        return [*place, *WORKLOADS[kind], *ADAPTING, *more]

    overrides.directory = directory
    return overrides


@pytest.fixture(scope="module")
def runs(run):
    """Each kind on one process and on two, there also with dropout, and that again from the checkpoint of step 8 on."""
    run_processes(1, "train_runs", runs=[run(kind, "one", "train.zero_stage=0") for kind in KINDS])
    # Stage 3 comes last: DeepSpeed replaces torch's linear layer then, whose gradients differ in rounding.
    two = [dropped(run, kind, "straight") for kind in KINDS]
    two += [run(kind, f"s{stage}", f"train.zero_stage={stage}") for stage in STAGES for kind in KINDS]
    run_processes(2, "train_runs", runs=two)
    for kind in KINDS:
        cut_back(run.directory, f"{kind}_straight", f"{kind}_again", 8)
    run_processes(2, "train_runs", runs=[dropped(run, kind, "again") for kind in KINDS])
    return run.directory


def dropped(run, kind: str, name: str) -> list[str]:
    return run(kind, name, *([] if kind == "dlrm" else ["model.dropout=0.2"]))


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_adapts_and_reaches_its_size(runs, kind):
    first, *_, last = metrics(runs, f"{kind}_one")
    assert last["loss"] < first["loss"]
    assert last["params"] < first["params"]
    summary = json.loads((runs / f"{kind}_one/summary.json").read_text())
    assert summary["adaptation"]["verdict"].startswith("Target reached")
    figures = {"classifier": "val_accuracy", "masked_lm": "val_accuracy", "dlrm": "val_auc"}
    assert 0 < summary[figures[kind]] <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", STAGES)
def test_two_processes_are_one(runs, kind, stage):
    assert losses(runs, f"{kind}_s{stage}") == pytest.approx(losses(runs, f"{kind}_one"), rel=5e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_bit_for_bit(runs, kind):
    expected, found = saved_tensors(runs, f"{kind}_straight", 14), saved_tensors(runs, f"{kind}_again", 14)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(runs, f"{kind}_again") == losses(runs, f"{kind}_straight")
