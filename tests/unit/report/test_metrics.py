"""No log ends a run: a full disk, a dead W&B, a W&B that hangs."""

import json
import threading

import pytest
from comera_dist.report.metrics import Metrics, WandbLog

from comera_dist.config.reader import read_config
from comera_dist.report import metrics
from comera_dist.storage.run_directory import RunDirectory


@pytest.fixture
def log(tmp_path):
    return Metrics(RunDirectory(tmp_path), read_config(None, ["train.steps=2", "wandb.mode=disabled"]))


class Run:
    """A run of W&B that breaks at the named call."""

    def __init__(self, breaks: str | None = None):
        self.breaks, self.calls = breaks, []

    def log(self, record):
        self._call("log")

    def finish(self):
        self._call("finish")

    def _call(self, name):
        self.calls.append(name)
        if name == self.breaks:
            raise ConnectionResetError(104, "Connection reset by peer")


def test_calls_come_in_order_and_are_waited_for():
    run = Run()
    log = WandbLog(run, "there")
    for _ in range(3):
        log.do(lambda run: run.log({}))
    log.close(10)
    log.close(10)
    assert run.calls == ["log", "log", "log", "finish"]


@pytest.mark.parametrize("breaks", ["log", "finish"])
def test_a_broken_wandb_is_said_once(capsys, breaks):
    log = WandbLog(Run(breaks), "there")
    for _ in range(3):
        log.do(lambda run: run.log({}))
    log.close(10)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "Weights & Biases broke off ([Errno 104] Connection reset by peer); the run does not depend on it" in said


def test_a_wandb_that_hangs_is_left(capsys):
    log = WandbLog(Run(), "there")
    log.do(lambda run: threading.Event().wait())
    log.close(0.1)
    assert "Weights & Biases did not finish within 0.1 s" in capsys.readouterr().out


def test_a_wandb_that_does_not_start_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(metrics, "_online_or_offline", lambda *_: 1 / 0)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    Metrics(RunDirectory(tmp_path), read_config(None, ["train.steps=2", "wandb.mode=offline"])).close()
    assert "Weights & Biases does not start (division by zero)" in capsys.readouterr().out


def test_a_full_disk_is_said_once_and_the_run_goes_on(log, tmp_path, capsys):
    log.log({"step": 1})
    (tmp_path / "metrics.jsonl").rename(tmp_path / "kept")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    for step in (2, 3):
        log.log({"step": step})
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "metrics.jsonl cannot be written (No space left on device); lines are missing in it from step 2 on" in said
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "kept").rename(tmp_path / "metrics.jsonl")
    log.log({"step": 4})
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 4]
