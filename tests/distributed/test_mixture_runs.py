"""Runs on a mixture of corpora: resumed bit for bit, alike on 1, 2 and 4 processes, judged corpus by corpus."""

import json

import pytest
import torch
from forked import run_processes
from support import TINY, cut_back, losses, make_corpus, metrics, mixture_of, saved_tensors

pytestmark = pytest.mark.distributed
TWENTY = ["train.steps=20", "checkpoint.every=10", "checkpoint.keep=9", "eval.every=10", "optim.lr=0.01"]
SHARES = (0.4, 0.6)  # of 56 windows of b, 20 steps of 8 windows read 96: an epoch ends at step 12


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Overrides of a run on the mixture, by name, as `run.directory`."""
    directory = tmp_path_factory.mktemp("mixture")
    folders = [make_corpus(directory / "a"), make_corpus(directory / "b", train_tokens=900, valid_tokens=300)]

    def overrides(name, *more, weights=SHARES):
        place = [f"run.directory={directory}", f"run.name={name}", mixture_of(dict(zip(folders, weights, strict=True)))]
        return [*place, *TINY, *TWENTY, *more]

    overrides.directory, overrides.folders = directory, folders
    return overrides


@pytest.fixture(scope="module")
def straight(run):
    for count in (1, 2, 4):
        assert run_processes(count, "train_runs", runs=[run(f"on_{count}")]) == [[0]] * count
    return run.directory


@pytest.fixture(scope="module")
def heard(run, straight):
    """A run that was cut back in the middle of an epoch and resumed, then starts that are refused."""
    again = run(cut_back(straight, "on_2", "again", 10))
    changed = run("on_2", "train.steps=30", weights=(0.5, 0.5))
    one = [f"data.corpus={run.folders[0]}", *run("on_2", "train.steps=30", "data.mixture=[]")]
    return run_processes(2, "train_and_listen", runs=[again, changed, one])[0]


def test_a_resume_is_bit_for_bit(straight, heard):
    assert heard[0][-1] == "0"
    expected, found = (saved_tensors(straight, name, 20) for name in ("on_2", "again"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(straight, "again") == losses(straight, "on_2")


def test_any_number_of_processes_reads_the_same_rows(straight):
    for name in ("on_1", "on_4"):
        assert losses(straight, name) == pytest.approx(losses(straight, "on_2"), rel=2e-6)


def test_other_weights_or_corpora_in_the_same_run_are_refused(heard):
    for refused in heard[1:]:
        assert "name the corpus of the checkpoint, or its mixture with the same weights" in refused[-1]


def test_each_corpus_has_its_figures_in_logs_and_summary(run, straight):
    summary = json.loads((straight / "on_2/summary.json").read_text())
    for figure in ("loss", "bits_per_byte"):
        mean = sum(share * summary[f"val_{figure}/{name}"] for name, share in zip("ab", SHARES, strict=True))
        assert summary[f"val_{figure}"] == pytest.approx(mean, rel=1e-6)
    assert summary["val_loss/a"] != summary["val_loss/b"]
    last = metrics(straight, "on_2")[-1]
    assert {key: last[key] for key in summary if key.startswith("val_")} == {
        key: value for key, value in summary.items() if key.startswith("val_")
    }


def test_a_trained_model_is_judged_on_the_mixture_or_on_one_corpus(run, straight):
    summary = json.loads((straight / "on_2/summary.json").read_text())
    name = str(straight / "on_2")
    whole, one = run_processes(1, "evaluate_runs", calls=[{"run": name}, {"run": name, "corpus": str(run.folders[1])}])[
        0
    ]
    assert whole["corpus"] == f"{run.folders[0]} + {run.folders[1]}"
    assert whole["targets"] == 600
    for key in ("loss", "loss/a", "loss/b", "bits_per_byte"):
        assert whole[key] == pytest.approx(summary[f"val_{key}"], rel=1e-5)
    assert one["loss"] == pytest.approx(whole["loss/b"], rel=1e-6)
    assert "loss/b" not in one
