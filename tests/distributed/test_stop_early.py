"""A run whose validation loss stops improving ends before its last step, at the same step after any resume."""

import json

import pytest
import torch
from forked import run_processes
from support import cut_back, metrics, saved_tensors, tiny_run
from test_bad_steps import BATCH, assert_same, train

pytestmark = pytest.mark.distributed
# Validations at 5, 10 and 15; only the first improves by so much.
RULE = ["train.stop_early.patience=2", "train.stop_early.min_delta=9", "eval.every=5"]
FORTY = ["train.steps=40", "train.zero_stage=1", "checkpoint.keep=9", *RULE]


def summary(directory, name) -> dict:
    return json.loads((directory / name / "summary.json").read_text())


@pytest.fixture(scope="module")
def straight(tiny_corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("stop_early")
    runs = [tiny_run(tiny_corpus, directory, "run", *FORTY, "checkpoint.every=5")]
    runs += [tiny_run(tiny_corpus, directory, "unsaved", *FORTY)]
    assert run_processes(2, "train_runs", runs=runs) == [[0, 0]] * 2
    return directory


def test_it_ends_like_a_run_that_made_all_of_its_steps(straight):
    for name in ("run", "unsaved"):
        ended = summary(straight, name)
        assert (ended["step"], ended["ended_by"]) == (15, "train.stop_early (patience 2, min_delta 9)")
        assert metrics(straight, name)[-1]["step"] == 15
        assert metrics(straight, name)[-1]["val_loss"] == ended["val_loss"]
        assert saved_tensors(straight, name, 15)


def unlogged(directory, name, steps):
    """Cuts the log of a run back to its first `steps` lines."""
    log = directory / name / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:steps]))
    return name


def test_a_resumed_run_ends_at_the_same_step_with_the_same_bits(straight, tiny_corpus):
    # A checkpoint is saved before its validation; a kill may come before or after that is logged.
    names = [cut_back(straight, "run", f"from_{step}", step) for step in (5, 10, 15)]
    names += [unlogged(straight, cut_back(straight, "run", f"unlogged_{step}", step), step - 1) for step in (10, 15)]
    runs = [tiny_run(tiny_corpus, straight, name, *FORTY, "checkpoint.every=5") for name in names]
    assert run_processes(2, "train_runs", runs=runs) == [[0] * len(runs)] * 2
    expected = saved_tensors(straight, "run", 15)
    for name in names:
        found, log = saved_tensors(straight, name, 15), metrics(straight, name)
        assert all(torch.equal(expected[key], found[key]) for key in expected)
        assert [record["step"] for record in log] == list(range(1, 16))
        assert summary(straight, name)["ended_by"] == summary(straight, "run")["ended_by"]


def test_the_same_command_finds_it_finished_and_more_patience_makes_it_longer(straight, tiny_corpus):
    cut_back(straight, "unsaved", "longer", 15)
    (straight / "longer/summary.json").write_text((straight / "unsaved/summary.json").read_text())
    again = tiny_run(tiny_corpus, straight, "longer", *FORTY)
    said, longer = run_processes(1, "train_and_listen", runs=[again, [*again, "train.stop_early.patience=3"]])[0]
    assert any("is already finished" in line for line in said)
    assert any("Stopped early at step 20: 3 validations in a row" in line for line in longer)
    assert summary(straight, "longer")["step"] == 20


def test_a_run_that_is_made_longer_does_not_look_finished_meanwhile(tiny_corpus, tmp_path):
    """Its old summary would tell launch/supervise.py that it is."""
    runs = [tiny_run(tiny_corpus, tmp_path, "a", f"train.steps={steps}") for steps in (2, 4)]
    assert run_processes(1, "summaries_at_starts", runs=runs) == [[False, False]]
    assert summary(tmp_path, "a")["step"] == 4


def test_a_rewound_run_ends_like_one_that_never_saw_the_data(tiny_corpus, tmp_path):
    keys = [*FORTY, "checkpoint.every=5", "train.on_bad_step=rewind"]
    rewound, never = (tiny_run(tiny_corpus, tmp_path, name, *keys) for name in ("rewound", "never"))
    (tmp_path / "never").mkdir()
    (tmp_path / "never/run.json").write_text(json.dumps({"rewinds": [{"step": 10, "row": 12 * BATCH, "bad_step": 12}]}))
    said, _ = train([rewound, never], [12])
    assert any(line.startswith("Rewound to step 10") for line in said)
    assert summary(tmp_path, "rewound")["step"] == summary(tmp_path, "never")["step"] == 15
    assert_same(tmp_path, "rewound", "never", 15)


def test_a_late_stage_is_not_stopped_before_it_has_its_ranks(tiny_corpus, tmp_path):
    ranks = ["ranks.adapt=true", "ranks.sync_every=4", "ranks.target_fraction=0.6"]
    run = tiny_run(tiny_corpus, tmp_path, "ranks", *FORTY, "eval.every=2", "train.zero_stage=0", *ranks)
    assert run_processes(1, "train_runs", runs=[run]) == [[0]]
    log = metrics(tmp_path, "ranks")
    settled = next(r["step"] for r in log if r["stage"] == "settled" and "val_loss" in r)
    assert settled > 8, "an endless late stage would not show that it is waited for"
    assert summary(tmp_path, "ranks")["step"] == log[-1]["step"] == settled + 4
