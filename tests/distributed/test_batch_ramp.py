"""A batch that grows: the same rows and losses on any processes, at any stage, static or not, and after a resume."""

import json

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, metrics, saved_tensors, tiny_run
from test_static_step import Calls

pytestmark = pytest.mark.distributed
# 2, 2, 4, 6, 8, 8, 8 and 8 sequences of 16 tokens.
RAMP = ["train.batch_ramp.start=2", "train.batch_ramp.steps=4", "checkpoint.every=3", "checkpoint.keep=9"]
ROWS = [2, 4, 8, 14, 22, 30, 38, 46]  # read after each step
PLACES = [(count, stage) for count in (1, 2) for stage in range(4)]


@pytest.fixture(scope="module")
def trained(tiny_corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ramp")
    for count in (1, 2):
        stages = [s for places, s in PLACES if places == count]
        runs = [tiny_run(tiny_corpus, directory, f"on_{count}_{s}", *RAMP, f"train.zero_stage={s}") for s in stages]
        runs += [
            tiny_run(tiny_corpus, directory, f"on_{count}_micro", *RAMP, "train.micro_batch=1", "train.zero_stage=2")
        ]
        assert run_processes(count, "train_runs", runs=runs) == [[0] * len(runs)] * count
    return directory


@pytest.mark.parametrize("name", [*(f"on_{count}_{stage}" for count, stage in PLACES), "on_1_micro", "on_2_micro"])
def test_every_split_trains_alike_and_counts_its_tokens(trained, name):
    assert losses(trained, name) == pytest.approx(losses(trained, "on_1_0"), rel=1e-5)
    assert [record["tokens"] for record in metrics(trained, name)] == [16 * rows for rows in ROWS]
    assert [record["targets"] for record in metrics(trained, name)] == [32, 32, 64, 96, 128, 128, 128, 128]
    assert json.loads((trained / name / "summary.json").read_text())["tokens"] == 16 * ROWS[-1]


@pytest.mark.parametrize("name", ["on_2_1", "on_2_3"])
def test_a_resume_within_the_ramp_is_bit_for_bit(trained, tiny_corpus, name):
    again = cut_back(trained, name, f"{name}_again", 3)
    run = tiny_run(tiny_corpus, trained, again, *RAMP, f"train.zero_stage={name[-1]}")
    assert run_processes(2, "train_runs", runs=[run]) == [[0]] * 2
    expected, found = (saved_tensors(trained, one, 8) for one in (name, again))
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_gradients_of_a_small_step_are_those_of_the_mean_over_its_targets(tiny_corpus, tmp_path):
    calls = Calls(tiny_corpus, tmp_path)
    for stage in range(4):
        options = ["train.grad_clip=0", f"train.zero_stage={stage}", "data.documents=separate"]
        calls.add(("small", stage), "gradient_error", *options, *RAMP[:2], "train.micro_batch=1", rows=2)
    for error, loss_error, _ in calls.run(2).values():
        assert error < 1e-4
        assert loss_error < 1e-5


def test_the_static_step_is_the_eager_step(tiny_corpus, tmp_path):
    calls = Calls(tiny_corpus, tmp_path)
    for stage in (0, 1, 2):
        calls.add_both(("ramp", stage), f"train.zero_stage={stage}", *RAMP[:2], steps=6)
    results = calls.run(2)
    for stage in (0, 1, 2):
        eager = min(stage, 1)  # with several micro batches a static stage 2 has the bits of stage 1
        assert results["ramp", stage, "static"] == results["ramp", eager, "eager"]


def test_a_budget_of_tokens_keeps_its_ramp(trained, tiny_corpus):
    budget = ["train.steps=null", f"train.tokens={16 * 46}"]
    run = tiny_run(tiny_corpus, trained, cut_back(trained, "on_1_1", "budget", 3), *RAMP, *budget, "train.zero_stage=1")
    changed, same = run_processes(1, "train_or_say", runs=[[*run, "train.batch_ramp.steps=7"], run])[0]
    assert "set train.batch_ramp.steps=4 as before" in changed
    assert same == 0
    expected, found = (saved_tensors(trained, name, 8) for name in ("on_1_1", "budget"))
    assert all(torch.equal(expected[key], found[key]) for key in expected)
