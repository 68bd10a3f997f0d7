"""Runs whose documents are kept apart: at every ZeRO stage, compiled, resumed, judged."""

import json

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
SEPARATE = "data.documents=separate"
COMPILED = ["model.format=dense", "train.zero_stage=0"]  # compilers take longest over layers of formats


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def run(tiny_corpus, directory):
    def overrides(name, *more):
        return tiny_run(tiny_corpus, directory, name, SEPARATE, "optim.lr=0.01", "checkpoint.every=4", *more)

    return overrides


@pytest.fixture(scope="module")
def trained(run, directory):
    """Eight steps on two processes at each stage, and on one process with joined documents and without."""
    stages = [run(f"stage{stage}", f"train.zero_stage={stage}", "checkpoint.keep=9") for stage in range(4)]
    run_processes(2, "train_runs", runs=stages)
    run_processes(1, "train_runs", runs=[run("one"), run("joined", "data.documents=joined")])
    return directory


@pytest.mark.parametrize("stage", range(4))
def test_every_stage_trains_alike(trained, stage):
    assert losses(trained, f"stage{stage}") == pytest.approx(losses(trained, "one"), rel=1e-5)


def test_it_is_another_run_than_with_joined_documents(trained):
    assert losses(trained, "one") != pytest.approx(losses(trained, "joined"), rel=1e-5)


def test_a_resume_is_bit_for_bit_and_may_not_join_documents(run, trained):
    again = run(cut_back(trained, "stage1", "again", 4), "train.zero_stage=1")
    joined = run("stage1", "train.steps=9", "data.documents=joined")
    said = run_processes(2, "train_and_listen", runs=[again, joined])[0]
    assert said[0][-1] == "0"
    assert "data.documents = joined and the run's checkpoint was trained with separate; set it back" in said[1][-1]
    expected, found = (saved_tensors(trained, name, 8) for name in ("stage1", "again"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_trained_model_is_judged_as_in_its_run(trained):
    summary = json.loads((trained / "one/summary.json").read_text())
    (found,) = run_processes(1, "evaluate_runs", calls=[{"run": str(trained / "one")}])[0]
    assert found["loss"] == pytest.approx(summary["val_loss"], rel=1e-5)


def test_compiled_steps_are_the_plain_ones_to_rounding(run):
    calls = [
        ["make_steps", {"overrides": run(name, *COMPILED, *more), "steps": 2}]
        for name, more in (("plain", []), ("compiled", ["train.compile=true"]))
    ]
    plain, compiled = run_processes(1, "several", calls=calls)[0]
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert compiled["norms"] == pytest.approx(plain["norms"], rel=1e-4)
