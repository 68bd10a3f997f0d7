"""With checkpoint.keep_best the checkpoint of the lowest validation loss stays, whatever is saved and resumed later."""

import json
import shutil

import pytest
import torch
from forked import run_processes
from support import cut_back, metrics, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
# A rate that rises far above what the model bears: the loss falls first, then climbs.
KEYS = [
    "train.steps=12",
    "eval.every=2",
    "optim.lr=1",
    "schedule.warmup_steps=11",
    "checkpoint.keep=1",
    "checkpoint.every=5",
]


def run(corpus, directory, name, *more):
    return tiny_run(corpus, directory, name, *KEYS, *more)


def kept(directory, name):
    return sorted(int(path.name[5:]) for path in (directory / name / "checkpoints").glob("step_*"))


def best(directory, name):
    """The step of the lowest validation loss in the log."""
    return min((r["val_loss"], r["step"]) for r in metrics(directory, name) if "val_loss" in r)[1]


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """A run that keeps the best, one that keeps all, the former from each checkpoint on, and one with cuts."""
    directory = tmp_path_factory.mktemp("best")
    ranks = ["ranks.adapt=true", "ranks.sync_every=2", "ranks.target_fraction=0.7", "ranks.late_end=0.6"]
    first = [
        run(tiny_corpus, directory, "best", "checkpoint.keep_best=true"),
        run(tiny_corpus, directory, "all", "checkpoint.keep=99", "checkpoint.keep_best=true", "checkpoint.every=1"),
        run(tiny_corpus, directory, "ranks", "checkpoint.keep_best=true", "optim.lr=0.01", *ranks),
    ]
    run_processes(2, "train_runs", runs=first)
    names = [cut_back(directory, "all", f"from_{step}", step) for step in range(1, 12)]
    again = [run(tiny_corpus, directory, name, "checkpoint.keep_best=true") for name in names]
    run_processes(2, "train_runs", runs=again)
    return directory


def test_it_stays_and_the_others_go(runs):
    step = best(runs, "all")
    assert 1 < step < 12, "the last one stays anyway"
    assert kept(runs, "best") == [step, 12]
    assert json.loads((runs / "best/summary.json").read_text())["best_step"] == step
    expected, found = saved_tensors(runs, "all", step), saved_tensors(runs, "best", step)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_disk_that_is_slower_than_the_steps_keeps_it(runs, tiny_corpus):
    """Each save then begins in the end of the one before it."""
    run_processes(2, "train_on_slow_disk", overrides=run(tiny_corpus, runs, "slow", "checkpoint.keep_best=true"))
    assert kept(runs, "slow") == [best(runs, "slow"), 12]


@pytest.mark.parametrize("step", range(1, 12))
def test_a_resumed_run_keeps_the_same_one(runs, step):
    """A checkpoint is saved before its step is validated, so the start that resumes from it judges that step."""
    assert best(runs, "all") in kept(runs, f"from_{step}")
    assert json.loads((runs / f"from_{step}/summary.json").read_text())["best_step"] == best(runs, "all")


def test_one_that_is_gone_is_not_promised(runs, tiny_corpus):
    """As after checkpoint.keep_best was turned on in the middle of a run."""
    cut_back(runs, "all", "gone", 11)
    shutil.rmtree(runs / f"gone/checkpoints/step_{best(runs, 'all'):07d}")
    again = run(tiny_corpus, runs, "gone", "checkpoint.keep_best=true")
    (said,) = run_processes(1, "train_and_listen", runs=[again])[0]
    (line,) = [line for line in said if line.startswith("The checkpoint of step")]
    assert f"step {best(runs, 'all')}, which had the lowest validation loss" in line
    assert json.loads((runs / "gone/summary.json").read_text())["best_step"] is None


def test_one_comes_back_from_the_mirror(runs, tiny_corpus):
    mirrored = ["checkpoint.keep_best=true", f"checkpoint.mirror=file://{runs}/remote"]
    run_processes(2, "train_runs", runs=[run(tiny_corpus, runs, "mirrored", *mirrored)])
    shutil.rmtree(runs / "mirrored")
    run_processes(2, "train_runs", runs=[run(tiny_corpus, runs, "mirrored", *mirrored, "train.steps=13")])
    assert kept(runs, "mirrored") == [best(runs, "all"), 13]


def test_losses_before_the_ranks_are_there_do_not_count(runs):
    settled = [r["step"] for r in metrics(runs, "ranks") if r["stage"] == "settled" and "val_loss" in r]
    found = json.loads((runs / "ranks/summary.json").read_text())["best_step"]
    assert found in settled
    assert kept(runs, "ranks") == sorted({found, 12})
