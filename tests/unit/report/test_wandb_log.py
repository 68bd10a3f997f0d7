"""W&B ends no run: neither a dead one nor one that hangs."""

import shlex
import subprocess
import sys
import threading

import numpy as np
import pytest
from matplotlib.image import imread, imsave

from comera_dist.config.reader import read_config
from comera_dist.report.records import NormsMeasured, RanksSynced, RunEnded, RunFinished, RunStarted, StepLogged
from comera_dist.report.wandb_log import WandbCalls, WandbLog, wandb_mode
from comera_dist.storage.run_directory import RunDirectory

OFFLINE = read_config(None, ["train.steps=2", "wandb.mode=offline"])
STARTED = RunStarted(OFFLINE, None, {}, None, 1, 0)


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
    log = WandbCalls(run, "there")
    for _ in range(3):
        log.do(lambda run: run.log({}))
    log.close(10)
    log.close(10)
    assert run.calls == ["log", "log", "log", "finish"]


@pytest.mark.parametrize("breaks", ["log", "finish"])
def test_a_broken_wandb_is_said_once(capsys, breaks):
    log = WandbCalls(Run(breaks), "there")
    for _ in range(3):
        log.do(lambda run: run.log({}))
    log.close(10)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "Weights & Biases broke off ([Errno 104] Connection reset by peer); the run does not depend on it" in said


@pytest.mark.parametrize("kind", ["run", "offline-run"])
def test_the_command_in_the_sentence_finds_what_was_recorded(tmp_path, monkeypatch, capsys, kind):
    """wandb's own command passes over runs that began online, and looks into ./wandb alone."""
    folder = tmp_path / "runs/my run/wandb"
    recorded = folder / f"{kind}-20260101_000000-abcd1234/run-abcd1234.wandb"
    recorded.parent.mkdir(parents=True)
    recorded.touch()
    monkeypatch.chdir(tmp_path)
    log = WandbCalls(Run("finish"), "runs/my run/wandb")
    log.close(10)
    command = shlex.split(capsys.readouterr().out.split("`")[1])
    done = subprocess.run([sys.executable, "-m", *command, "--dry-run"], capture_output=True, text=True)
    assert "Would sync 1 run(s)" in done.stdout + done.stderr


def test_a_wandb_that_hangs_is_left(capsys):
    log = WandbCalls(Run(), "there")
    log.do(lambda run: threading.Event().wait())
    log.close(0.1)
    assert "Weights & Biases did not finish within 0.1 s" in capsys.readouterr().out


def test_a_wandb_that_does_not_start_is_said(tmp_path, capsys):
    log = WandbLog(OFFLINE, RunDirectory(tmp_path), start=lambda *_: 1 / 0)
    for record in (STARTED, StepLogged({"step": 1}, 1.0, 0.0), RunEnded(in_haste=False)):
        log(record)
    assert "Weights & Biases does not start (division by zero)" in capsys.readouterr().out


class Recorder(Run):
    """A run of W&B that keeps what it is given. Its own step counts calls, also over the starts of a run.

    As W&B it drops a record of an earlier `step` than its own one.
    """

    def __init__(self):
        super().__init__()
        self.logged, self.summary, self.axes, self.own_step = [], {}, [], 0

    def define_metric(self, name, step_metric):
        self.axes.append((name, step_metric))

    def log(self, record, step=None):
        if step is None or step >= self.own_step:
            self.logged.append(record)
            self.own_step = (self.own_step if step is None else step) + 1


def started(step: int) -> RunStarted:
    return STARTED._replace(step=step)


def test_figures_are_sent_and_a_resumed_run_keeps_its_id(tmp_path):
    run, starts = Recorder(), []

    def start(directory, config, run_id, mode):
        starts.append((run_id, mode))
        return run

    for step in (0, 1):
        log = WandbLog(OFFLINE, RunDirectory(tmp_path), start)
        log(started(step))
        log(StepLogged({"step": step + 1, "loss": 2.0}, 1.0, 0.0))
        log(RunEnded(in_haste=True))
    log(RunFinished({"step": 2, "val_loss": 1.0}, None))  # after its end nothing is sent
    assert starts[0] == starts[1]
    assert starts[0][1] == "offline"
    assert run.logged == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 2.0}]
    assert run.axes == [("*", "step")] * 2
    assert run.calls == ["finish", "finish"]


def test_a_start_from_an_earlier_step_sends_all_its_figures(tmp_path):
    """As after a kill that lost some steps, or after a rewind: the abandoned figures stay, with their steps."""
    run, log = Recorder(), None
    for first, last in ((0, 8), (4, 10)):
        log = WandbLog(OFFLINE, RunDirectory(tmp_path), lambda *_: run)
        log(started(first))
        for step in range(first + 1, last + 1):
            log(StepLogged({"step": step, "loss": float(first)}, 1.0, 0.0))
        log(RunEnded(in_haste=False))
    assert [record["step"] for record in run.logged if record["loss"] == 0.0] == list(range(1, 9))
    assert [record["step"] for record in run.logged if record["loss"] == 4.0] == list(range(5, 11))


def test_a_run_that_begins_anew_has_a_new_id(tmp_path):
    ids = []
    for _ in range(2):
        WandbLog(OFFLINE, RunDirectory(tmp_path), lambda *given: ids.append(given[2]))(started(0))
    assert len(set(ids)) == 2


def test_norms_and_heat_maps_are_sent_while_the_run_goes_on(tmp_path):
    run, plots = Recorder(), tmp_path / "plots"
    syncs = ["ranks.adapt=true", "ranks.sync_every=1"]
    config = read_config(None, ["train.steps=2", "wandb.mode=offline", "log.norms_every=2", *syncs])
    log = WandbLog(config, RunDirectory(tmp_path), lambda *_: run)
    log(STARTED)
    plots.mkdir()
    imsave(plots / "ranks.png", np.full((3, 8, 3), 0.5))
    log(RanksSynced({"step": 1, "size": 7, "ranks": {"a": [2]}}))
    log(NormsMeasured({"step": 2, "tokens": 6, "weight": {"c": 1.0}}))  # updates.png could not be drawn
    log(RunEnded(in_haste=False))
    assert [record["step"] for record in run.logged] == [1, 1, 2, 2]
    numbers, pictures, norms, none = run.logged
    assert (numbers["ranks/size"], norms, none) == (7, {"step": 2, "norms/weight/c": 1.0}, {"step": 2})
    assert imread(pictures["plots/ranks"]._path).shape[:2] == (3, 8)


@pytest.mark.parametrize(("host", "mode"), [("api.wandb.ai", "offline"), ("wandb.example.org", "online")])
def test_a_key_for_the_users_own_server_is_found(tmp_path, monkeypatch, host, mode):
    (tmp_path / "keys").write_text("machine wandb.example.org login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    monkeypatch.setenv("WANDB_BASE_URL", f"https://{host}")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert wandb_mode("auto") == mode


@pytest.mark.parametrize("url", [None, "https://[wandb.local"])
def test_keys_that_cannot_be_read_are_no_keys(tmp_path, monkeypatch, url):
    """Most users have such a file for other programs."""
    (tmp_path / "keys").write_bytes(b"machine example.org login m\xfcller password gru\xdf\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "keys"))
    for name, value in (("WANDB_BASE_URL", url), ("WANDB_API_KEY", None), ("WANDB_MODE", None)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert wandb_mode("auto") == "offline"
