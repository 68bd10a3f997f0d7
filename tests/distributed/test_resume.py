"""A resumed run is the run that was never interrupted."""

import json
import shutil

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, metrics, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
STAGES = (0, 1, 2, 3)
TWENTY = ["train.steps=20", "checkpoint.every=10", "checkpoint.keep=9", "schedule.warmup_steps=4"]


def without_ranks(directory, name):
    """Makes the run's checkpoint one of the time before rank adaptation."""
    manifest = directory / name / "checkpoints/step_0000010/manifest.json"
    record = json.loads(manifest.read_text())
    del record["run"]["ranks"], record["run"]["config"]["ranks"], record["sha256"]
    record["format"] = 1  # of that time
    manifest.write_text(json.dumps(record))
    return name


def not_yet_logged(directory, name):
    """Cuts the run's log back as a kill after the save of step 10 leaves it."""
    log = directory / name / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:9]))
    return name


@pytest.fixture(scope="module")
def straight(tiny_corpus, tmp_path_factory):
    """Twenty uninterrupted steps at each stage on two processes, and at stage 0 on one."""
    directory = tmp_path_factory.mktemp("resume")
    runs = [tiny_run(tiny_corpus, directory, f"s{s}", *TWENTY, f"train.zero_stage={s}") for s in STAGES]
    run_processes(2, "train_runs", runs=runs)
    run_processes(1, "train_runs", runs=[tiny_run(tiny_corpus, directory, "one", *TWENTY, "train.zero_stage=0")])
    return directory


@pytest.fixture(scope="module")
def resumed(straight, tiny_corpus):
    """The same runs cut back to step 10 and resumed by new processes; and across stages and numbers of processes."""

    def run(name, stage):
        return tiny_run(tiny_corpus, straight, name, *TWENTY, f"train.zero_stage={stage}")

    double = [run(cut_back(straight, f"s{s}", f"s{s}_again", 10), s) for s in STAGES]
    double += [run(cut_back(straight, "one", f"one_on_two_{s}", 10), s) for s in (1, 3)]
    single = [run(cut_back(straight, f"s{s}", f"s{s}_on_one", 10), 0) for s in (1, 3)]
    single.append(run(without_ranks(straight, cut_back(straight, "one", "one_of_old", 10)), 0))
    single.append(run(not_yet_logged(straight, cut_back(straight, "one", "one_not_logged", 10)), 0))
    assert run_processes(2, "train_runs", runs=double) == [[0] * len(double)] * 2
    assert run_processes(1, "train_runs", runs=single) == [[0] * len(single)]
    return straight


@pytest.mark.parametrize("stage", STAGES)
def test_resume_is_bit_for_bit(resumed, stage):
    expected, found = saved_tensors(resumed, f"s{stage}", 20), saved_tensors(resumed, f"s{stage}_again", 20)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("straight_on", "again"), [*((f"s{s}", f"s{s}_again") for s in STAGES), ("one", "one_not_logged")]
)
def test_log_of_a_resumed_run_is_the_uninterrupted_log(resumed, straight_on, again):
    keys = ("step", "tokens", "loss", "lr", "grad_norm", "params", "stage", "mean_rank", "gate_drift")
    logs = [[[r[k] for k in keys] for r in metrics(resumed, name)] for name in (straight_on, again)]
    assert logs[0] == logs[1]
    assert [row[0] for row in logs[1]] == list(range(1, 21))


@pytest.mark.parametrize("name", ["s1_on_one", "s3_on_one", "one_on_two_1", "one_on_two_3"])
def test_resume_at_another_stage_and_number_of_processes(resumed, name):
    assert losses(resumed, name) == pytest.approx(losses(resumed, "one"), rel=2e-6)
    manifest = json.loads((resumed / name / "checkpoints/step_0000020/manifest.json").read_text())
    assert len(manifest["files"]) == (2 if "two" in name else 1)


def test_checkpoint_of_the_time_before_rank_adaptation_is_resumed(resumed):
    assert losses(resumed, "one_of_old") == losses(resumed, "one")


def test_random_numbers_are_those_of_the_uninterrupted_run(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "dropout", "train.steps=6", "checkpoint.every=3", "checkpoint.keep=9")
    run_processes(2, "train_with_dropout", runs=[run])
    cut_back(tmp_path, "dropout", "dropout_again", 3)
    again = tiny_run(tiny_corpus, tmp_path, "dropout_again", *run[len(tiny_run(tiny_corpus, tmp_path, "")) :])
    run_processes(2, "train_with_dropout", runs=[again])
    assert losses(tmp_path, "dropout_again") == losses(tmp_path, "dropout")
    plain = tiny_run(tiny_corpus, tmp_path, "plain", "train.steps=6")
    run_processes(2, "train_runs", runs=[plain])
    assert losses(tmp_path, "plain") != losses(tmp_path, "dropout")


def test_signal_to_one_process_stops_all_with_a_checkpoint(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "stopped", "train.steps=12")
    assert run_processes(2, "stop_at", overrides=run, step=5, process=1) == ["STOPPED", "STOPPED"]
    assert (tmp_path / "stopped/checkpoints/LATEST").read_text() == "step_0000006\n"
    assert run_processes(2, "train_runs", runs=[run]) == [[0], [0]]
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, tmp_path, "straight", "train.steps=12")])
    assert losses(tmp_path, "stopped") == losses(tmp_path, "straight")


def test_a_signal_ends_a_validation_and_the_next_start_makes_it(tiny_corpus, tmp_path):
    """The whole split may take longer than the time until a scheduler kills."""
    run, peace = (tiny_run(tiny_corpus, tmp_path, name, "eval.every=4", "log.every=3") for name in ("stopped", "peace"))
    calls = [["stop_in_validation", {"overrides": run, "stop_at": at}] for at in (2, None)]
    calls.append(["train_runs", {"runs": [peace]}])
    (stopped, finished, _), _ = run_processes(2, "several", calls=calls)
    assert (stopped, finished["status"]) == ({"status": 75, "read": 2}, 0)
    found, expected = (
        [(one["step"], one["loss"], one.get("val_loss")) for one in metrics(tmp_path, name)]
        for name in ("stopped", "peace")
    )
    assert found == expected
    assert [step for step, _, validation in found if validation is not None] == [4, 8]


def test_a_resume_says_what_has_changed_and_refuses_what_may_not(tiny_corpus, tmp_path):
    """Under a budget of 1,024 tokens, of which a run with steps of 128 has read half."""

    def run(name, *overrides):
        return tiny_run(tiny_corpus, tmp_path, name, "train.steps=null", *overrides)

    run_processes(1, "train_runs", runs=[run("first", "train.tokens=512")])
    cut_back(tmp_path, "first", "again", 4)
    more = "train.tokens=1024"
    refused_batch, refused_length, longer, by_steps = run_processes(
        1,
        "train_and_listen",
        runs=[
            run("first", more, "train.batch_tokens=256"),
            run("first", more, "data.seq_len=8"),
            run("first", more, "optim.lr=0.001"),
            tiny_run(tiny_corpus, tmp_path, "again", "train.steps=6", "train.batch_tokens=256"),
        ],
    )[0]
    assert "checkpoint has read 512 tokens in 4 steps; set train.batch_tokens=128 as before" in refused_batch[-1]
    assert "data.seq_len = 8 and the run's checkpoint was trained with 16; set it back" in refused_length[-1]
    assert "Changed since the checkpoint: train.tokens 512 → 1024, optim.lr 0.003 → 0.001." in longer
    assert [record["tokens"] for record in metrics(tmp_path, "first")] == list(range(128, 1025, 128))
    changes = "train.steps null → 6, train.tokens 512 → null, train.batch_tokens 128 → 256"
    assert f"Changed since the checkpoint: {changes}." in by_steps
    assert metrics(tmp_path, "again")[-1]["tokens"] == 512 + 2 * 256


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(tiny_corpus, tmp_path):
    """As after a clean-up of the disk to which `checkpoints` was a link."""
    run = tiny_run(tiny_corpus, tmp_path, "emptied", "train.steps=4")
    run_processes(1, "train_runs", runs=[run])
    (tmp_path / "emptied/summary.json").unlink()
    shutil.rmtree(tmp_path / "emptied/checkpoints")
    ((*_, said),) = run_processes(1, "train_and_listen", runs=[run])[0]
    assert said.startswith("CheckpointError: ")
    assert "has begun and its checkpoints are gone, so it cannot go on; put them back" in said
    assert len(metrics(tmp_path, "emptied")) == 4
