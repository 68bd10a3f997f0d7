"""Whatever happens to a process of a run, the others end with a sentence and a status that says what to do."""

import pytest
from forked import end_processes, run_processes
from support import losses, tiny_run

from comera_dist.storage.lock import RunLock

pytestmark = pytest.mark.distributed


def everything_said(ended):
    text = "".join(one.out + one.err for one in ended)
    assert "Traceback" not in text, text
    return text


def test_a_hang_ends_all_processes_with_their_stacks_and_status_75(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "hung", "train.timeout_seconds=6")
    ended = end_processes(2, "pretrain", overrides=run, fault="hang", process=1)
    assert [one.status for one in ended] == [75, 75]
    assert "made no progress for train.timeout_seconds = 6" in everything_said(ended)
    waiting, hanging = (one.err for one in ended)
    assert "in all_reduce" in waiting
    assert "in <lambda>" in hanging
    assert all("run/loop.py" in stack for stack in (waiting, hanging))


def test_a_process_that_dies_leaves_the_others_with_a_sentence_and_status_75(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "alone")
    ended = end_processes(2, "pretrain", overrides=run, fault="death", process=1)
    assert [one.status for one in ended] == [75, 9]
    assert "another process has ended or cannot be reached, so process 0 ends too" in everything_said(ended)


def test_the_error_of_a_single_process_is_said(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "x")
    ended = end_processes(2, "pretrain", overrides=run, fault="own error", process=1)
    assert [one.status for one in ended] == [75, 2]
    assert "DataError: a shard of this process only is damaged" in everything_said(ended)


def test_processes_with_different_arguments_are_refused_before_they_write(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "mixed")
    ended = end_processes(2, "pretrain", overrides=run, fault="other rate", process=1)
    assert [one.status for one in ended] == [2, 2]
    assert everything_said(ended).count("ConfigError: optim.lr = 0.5 on process 1 of host ") == 1
    assert not (tmp_path / "mixed").exists()


def test_a_second_start_is_refused_on_all_processes_before_it_writes(tiny_corpus, tmp_path):
    lock = RunLock(tmp_path / "twice/run.lock")
    assert lock.acquire() is None
    ended = end_processes(2, "pretrain", overrides=tiny_run(tiny_corpus, tmp_path, "twice"))
    lock.release()
    assert [one.status for one in ended] == [2, 2]
    said = everything_said(ended)
    assert said.count("is already running, process ") == 1
    assert [path.name for path in (tmp_path / "twice").iterdir()] == ["run.lock"]


def test_a_validation_may_take_longer_than_the_timeout():
    assert run_processes(1, "measure_slowly", seconds_a_batch=0.3, timeout_seconds=1) == [5.0]


def test_checkpoints_come_by_time_and_no_library_warns(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "timed", "checkpoint.every_minutes=1e-9", "checkpoint.keep=9")
    ended = end_processes(2, "train_runs", runs=[run])
    assert [(one.status, one.err) for one in ended] == [(0, ""), (0, "")]
    assert len(list((tmp_path / "timed/checkpoints").glob("step_*"))) == 8


def test_a_run_directory_that_is_removed_is_made_anew(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "gone", "checkpoint.every=3", "checkpoint.keep=9")
    (ended,) = end_processes(1, "pretrain", overrides=run, fault="removal", step=4)
    assert ended.status == 0
    assert "was removed" in everything_said([ended])
    assert len(list((tmp_path / "gone/checkpoints").glob("step_*"))) == 2
    assert {"summary.json", "config.yaml", "run.json"} <= {p.name for p in (tmp_path / "gone").iterdir()}


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_a_sentence(tiny_corpus, tmp_path):
    ended = end_processes(1, "pretrain", overrides=tiny_run(tiny_corpus, tmp_path, "full"), fault="disk full")
    assert [one.status for one in ended] == [2]
    assert "Error: " in everything_said(ended)


def test_a_run_whose_validation_loss_is_not_finite_is_not_done(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "nan")
    (ended,) = end_processes(1, "pretrain", overrides=run, fault="undefined loss")
    assert ended.status == 2
    said = everything_said([ended])
    assert "the validation loss at step 8 is nan, expected a finite number" in said
    assert "Done" not in said
    assert not (tmp_path / "nan/summary.json").exists()


def test_a_closed_console_ends_nothing(tiny_corpus, tmp_path):
    (ended,) = end_processes(1, "pretrain", overrides=tiny_run(tiny_corpus, tmp_path, "mute"), fault="console")
    assert ended.status == 0
    assert len(losses(tmp_path, "mute")) == 8
