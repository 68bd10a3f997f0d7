"""The files of a run: held by one start at a time, and read whatever somebody has made of them."""

import errno
import fcntl
import json
import os
import shlex
import subprocess
import sys

import pytest

from comera_dist.config.reader import read_config
from comera_dist.errors import DiskError, RunDirectoryError
from comera_dist.run import loop
from comera_dist.run.loop import finished_summary, run_or_resume
from comera_dist.runtime.processes import Processes, alone
from comera_dist.storage import files
from comera_dist.storage.run_directory import RunDirectory

ALONE = alone()
SUMMARY = {"val_loss": 1.0, "params": 1, "dense_params": 2, "compression": 2.0, "tokens": 3, "wall_seconds": 4.0}
RECORD = {"step": 1, "tokens": 2, "loss": 3.0, "tokens_per_second": 4.0, "params": 5}


def test_a_run_is_held_by_one_start_at_a_time(tmp_path):
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with first.held(ALONE):
        pattern = (
            rf"run is already running, process {os.getpid()} on host \S+ since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d; wait"
        )
        with pytest.raises(RunDirectoryError, match=pattern), second.held(ALONE):
            pass
        assert first.still_held(ALONE)
    with second.held(ALONE):
        pass


def test_a_dead_process_holds_nothing(tmp_path):
    code = f"""
import os
from pathlib import Path
from comera_dist.storage.lock import RunLock
lock = RunLock(Path({str(tmp_path)!r}) / "run/run.lock")
assert lock.acquire() is None
os._exit(9)"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    with RunDirectory(tmp_path / "run").held(ALONE):
        pass


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with RunDirectory(tmp_path / "run").held(ALONE):
        assert "run.lock cannot be locked there (No locks available)" in capsys.readouterr().out


def test_a_directory_that_another_host_does_not_see_is_refused_at_the_start(tmp_path, monkeypatch):
    """Its shards would lie on its own disk, which the first save would meet."""
    monkeypatch.setattr(files, "SEEN_SECONDS", 0.1)
    monkeypatch.setattr(Processes, "sum", lambda self, values: values)
    monkeypatch.setattr(Processes, "gather", lambda self, thing: [thing])
    second, directory = Processes(1, 2, ALONE.device), RunDirectory(tmp_path / "run")
    expected = r"run of process 0 is not there on process 1 of host \S+, expected one folder for all hosts; set run.dir"
    with pytest.raises(RunDirectoryError, match=expected), directory.held(second):
        pass
    assert not (tmp_path / "run").exists()
    with RunDirectory(tmp_path / "run").held(ALONE), directory.held(second):
        pass


def test_a_lock_that_cannot_be_signed_is_given_back(tmp_path):
    (tmp_path / "run.lock").symlink_to("/dev/full")
    directory = RunDirectory(tmp_path)
    with pytest.raises(RunDirectoryError, match="cannot be written"), directory.held(ALONE):
        pass
    (tmp_path / "run.lock").unlink()
    with directory.held(ALONE):
        pass


def test_a_directory_that_was_removed_is_held_anew_or_belongs_to_who_has_taken_it(tmp_path):
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with first.held(ALONE):
        os.unlink(tmp_path / "run/run.lock")
        assert not first.still_held(ALONE)
        assert first.still_held(ALONE)
        os.unlink(tmp_path / "run/run.lock")
        with second.held(ALONE), pytest.raises(RunDirectoryError, match="is already running"):
            first.still_held(ALONE)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"cannot be written .* set run\.directory"):
        RunDirectory(tmp_path / "file/run").held(ALONE).__enter__()


@pytest.mark.parametrize(
    "text",
    ["", '{"val_loss": 1', "[]", "null", '{"val_loss": 1.0}', json.dumps(SUMMARY | {"val_loss": float("nan")})],
)
def test_a_damaged_summary_is_none(tmp_path, text):
    directory = RunDirectory(tmp_path)
    directory.finish(SUMMARY | {"step": 8})
    config, longer = (read_config(None, [f"train.steps={steps}"]) for steps in (8, 9))
    assert finished_summary(directory, config) == SUMMARY | {"step": 8}  # its checkpoints were removed
    assert finished_summary(directory, longer) is None
    directory.summary.write_text(text)
    assert finished_summary(directory, config) is None


def test_a_finished_run_on_a_file_system_that_is_away_is_tried_again(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    config = read_config(None, ["train.steps=8", f"run.directory={tmp_path}", "run.name=far"])
    (tmp_path / "far").mkdir()
    RunDirectory(tmp_path / "far").finish(SUMMARY | {"step": 8})
    monkeypatch.setattr(loop, "published", refuse)
    with pytest.raises(DiskError, match=r"a file of .*far or of its data cannot be read"):
        run_or_resume(config, ALONE)


def test_foreign_lines_of_a_log_are_put_aside(tmp_path):
    directory = RunDirectory(tmp_path)
    foreign = [b"epoch,loss\n", b'{"epoch": 1}\n', b"[1]\n", b'{"step": "3"}\n', b"\xff\xfe\n", b"[" * 9999 + b"\n"]
    foreign.append(b'{"step": 1%s}\n' % (b"0" * 400))
    whole = [json.dumps(RECORD | {"step": step}).encode() + b"\n" for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join([*foreign, *whole, b'{"step": 4, "cut sh']))
    assert [record["step"] for record in directory.read("metrics.jsonl")] == [1, 2, 3]
    directory.forget_after(2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(whole[:2])
    assert (tmp_path / "metrics.jsonl.foreign").read_bytes() == b"".join(foreign)


def test_a_log_that_is_written_anew_is_whole_after_a_loss_of_power(tmp_path, monkeypatch):
    directory, order = RunDirectory(tmp_path), []
    directory.append("metrics.jsonl", RECORD | {"step": 1})
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (order.append("flushed"), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replaced"), replace(*paths)))
    directory.forget_after(1)
    assert order == ["flushed", "replaced"]


def test_run_json_keeps_every_start(tmp_path):
    directory, config = RunDirectory(tmp_path), read_config(None, ["train.steps=2"])
    directory.open(config, 2, step=0)
    directory.note(wandb_id="abc")
    directory.open(config, 1, step=5)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert [(start["step"], start["world_size"]) for start in facts["starts"]] == [(0, 2), (5, 1)]
    assert facts["starts"][0].keys() == {
        "step", "time", "host", "command", "git", "git_dirty", "python", "versions", "world_size",
    }  # fmt: skip
    assert facts["starts"][0]["command"] == shlex.join(sys.orig_argv)
    assert (facts["wandb_id"], facts["world_size"]) == ("abc", 1)


@pytest.mark.parametrize("text", ["", "[]", '{"starts": 3}'])
def test_a_damaged_run_json_is_begun_anew(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    directory = RunDirectory(tmp_path)
    directory.open(read_config(None, ["train.steps=2"]), 2, step=0)
    assert len(directory.facts()["starts"]) == 1


def test_run_json_keeps_no_secret_of_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "mine.py", "--hf-token", "x", "--data=s3://me:pw@host/x", "--n=3"])
    RunDirectory(tmp_path).open(read_config(None, ["train.steps=2"]), 1, step=0)
    (start,) = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert start["command"] == "python mine.py --hf-token '***' '--data=s3://***@host/x' --n=3"


def test_facts_are_not_lost_where_they_cannot_be_read_for_a_moment(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.note(rewinds=[1])
    (tmp_path / "run.json").rename(tmp_path / "kept")
    (tmp_path / "run.json").mkdir()  # reading it is an OSError, also for root
    with pytest.raises(OSError, match="Is a directory"):
        directory.note(world_size=4)
    (tmp_path / "run.json").rmdir()
    (tmp_path / "kept").rename(tmp_path / "run.json")
    directory.note(world_size=4)
    assert directory.facts() == {"rewinds": [1], "world_size": 4}
