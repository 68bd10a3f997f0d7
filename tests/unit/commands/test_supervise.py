"""The supervisor starts a command until its run is finished; a short script stands for the run."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT

from comera_dist.commands import supervise as supervise_command
from comera_dist.commands.supervise import Supervisor
from comera_dist.runtime.endings import STOP_SIGNALS
from comera_dist.storage.run_directory import RunDirectory

SUMMARY = {"val_loss": 1.0, "params": 2, "dense_params": 2, "compression": 1.0, "tokens": 4, "wall_seconds": 1.0}
# Plays the next word of the file `plan`: saves a checkpoint, finishes, waits for a signal, or ends with a status.
RUN = """
import pathlib, signal, sys, time
run = pathlib.Path(sys.argv[1])
plan = (run / "plan").read_text().split()
(run / "plan").write_text(" ".join(plan[1:]))
with (run / "starts").open("a") as starts:
    starts.write(plan[0] + "\\n")
for act in plan[0].split(","):
    if act == "saves":
        step = len(list((run / "checkpoints").iterdir())) + 1
        (run / f"checkpoints/step_{step:07d}").mkdir()
    elif act == "finishes":
        (run / "summary.json").write_text((run / "summary").read_text())
    elif act == "waits":
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
        (run / "waiting").touch()
        time.sleep(60)
    else:
        sys.exit(int(act))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/summary").write_text(json.dumps(SUMMARY))
    (tmp_path / "run.py").write_text(RUN)
    return tmp_path / "run"


def supervise(run, *plan: str, tries: int = 3) -> subprocess.Popen:
    (run / "plan").write_text(" ".join(plan))
    supervisor = [sys.executable, str(ROOT / "launch/supervise.py"), "--run", str(run), "--tries", str(tries)]
    command = [*supervisor, "--pause", "0.01", "--", sys.executable, str(run.parent / "run.py"), str(run)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def outcome(run, *plan: str, **options) -> tuple[int, int, str]:
    """Exit status, number of starts, and messages."""
    process = supervise(run, *plan, **options)
    _, said = process.communicate(timeout=120)
    return process.returncode, len((run / "starts").read_text().split()), said


def test_it_starts_the_run_again_until_it_is_finished(run):
    assert outcome(run, "saves,1", "saves,75", "-9", "finishes,0", "0")[:2] == (0, 4)


def test_a_launcher_that_ends_with_0_before_the_run_is_finished_is_not_believed(run):
    assert outcome(run, "saves,0", "finishes,0")[:2] == (0, 2)


def test_the_directory_of_no_run_is_named(run):
    status, starts, said = outcome(run, "0", "0", tries=2)
    assert (status, starts) == (75, 2)
    assert said.count(f"the command ended with status 0 and {run} holds no run: check that it is run.dir") == 2


def test_a_mistake_is_final(run):
    assert outcome(run, "saves,75", "2", "finishes,0")[:2] == (2, 2)


def test_it_gives_up_when_starts_bring_no_new_checkpoint(run):
    status, starts, said = outcome(run, "1", "saves,1", "1", "1", "1", "finishes,0")
    assert (status, starts) == (75, 5)
    assert "3 starts in a row brought no new checkpoint" in said


def test_a_signal_is_passed_on_and_ends_the_supervision(run):
    process = supervise(run, "waits", "finishes,0")
    while not (run / "waiting").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert (run / "starts").read_text().split() == ["waits"]


@pytest.fixture
def handlers():
    """Gives the handlers of this process back."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled_at_its_starts(folder, monkeypatch, number, command):
    """Exit status of a supervisor that is signalled when a child is there that it does not know yet; the children."""
    start, started = subprocess.Popen, []

    def start_and_signal(*arguments, **keys):
        started.append(start(*arguments, **keys))
        os.kill(os.getpid(), number)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start_and_signal)
    return Supervisor(command, RunDirectory(folder), tries=2, pause=0.0).run(), started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_comes_while_the_command_is_started_is_passed_on(tmp_path, monkeypatch, handlers, number):
    status, (child,) = signalled_at_its_starts(tmp_path, monkeypatch, number, ["sleep", "20"])
    assert (status, child.returncode) == (75, -number)


def test_a_supervisor_under_nohup_survives_the_end_of_its_terminal(tmp_path, monkeypatch, handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _, children = signalled_at_its_starts(tmp_path, monkeypatch, signal.SIGHUP, ["false"])
    assert len(children) == 2


def orphan_of(run, seconds: float) -> subprocess.Popen:
    """A process that holds the run, until some seconds after its first start."""
    hold = f"""
import time
from pathlib import Path
from comera_dist.storage.lock import RunLock
run = Path({str(run)!r})
lock = RunLock(run / "run.lock")
assert lock.acquire() is None
(run / "held").touch()
while not (run / "starts").exists():
    time.sleep(0.01)
time.sleep({seconds})
"""
    orphan = subprocess.Popen([sys.executable, "-c", hold], env=os.environ | {"PYTHONPATH": str(ROOT)})
    while not (run / "held").exists():
        time.sleep(0.01)
    return orphan


def test_it_waits_for_an_orphan_that_holds_the_run(run):
    orphan = orphan_of(run, seconds=2)
    status, starts, said = outcome(run, "75", "finishes,0")
    assert orphan.poll() == 0
    assert (status, starts) == (0, 2)
    assert said.count(f"still held by process {orphan.pid}") == 1


def test_a_signal_ends_the_wait_for_an_orphan(run):
    orphan = orphan_of(run, seconds=60)
    process = supervise(run, "75", "finishes,0")
    assert "still held" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert orphan.poll() is None
    orphan.kill()
    orphan.wait()


def test_a_mistake_is_final_while_another_process_holds_the_run(run):
    orphan = orphan_of(run, seconds=60)
    assert outcome(run, "2")[:2] == (2, 1)
    assert orphan.poll() is None
    orphan.kill()
    orphan.wait()


@pytest.mark.parametrize("pause", ["-1", "inf", "nan"])
def test_a_pause_that_is_no_time_is_a_mistake(run, pause):
    command = [sys.executable, str(ROOT / "launch/supervise.py"), "--run", str(run), f"--pause={pause}", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert "argument --pause" in done.stderr


def test_the_pause_doubles_from_the_first_one(run):
    said = outcome(run, "1", "1", "saves,1", "finishes,0")[2]
    assert [line.split()[-2] for line in said.splitlines()] == ["0.01", "0.02", "0.01"]


def test_a_command_that_does_not_exist_is_a_mistake(run):
    command = [sys.executable, str(ROOT / "launch/supervise.py"), "--run", str(run), "--", "no-such-command"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert "supervise: no-such-command cannot be started (No such file or directory)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_is_away_ends_no_supervision(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    (tmp_path / "checkpoints/step_0000010").mkdir(parents=True)
    supervisor = Supervisor([sys.executable, "-c", "exit(1)"], RunDirectory(tmp_path), tries=2, pause=0.0)
    assert supervisor._newest() == 10
    monkeypatch.setattr(supervise_command, "published", fail)
    monkeypatch.setattr(RunDirectory, "holder", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert supervisor.run() == 75
    said = capsys.readouterr().err
    assert "checkpoints cannot be read now (Stale file handle)" in said
    assert "after the checkpoint of step 10" in said


def test_the_supervisor_needs_no_torch():
    """It waits beside the run on every host: torch would take 200 MiB there."""
    code = "import sys, comera_dist.commands.supervise; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_thousand_fruitless_starts_are_waited_for_and_end_in_a_sentence(tmp_path, monkeypatch, capsys, handlers):
    """The pause doubled as a whole number, until no float could hold it."""
    supervisor = Supervisor(["false"], RunDirectory(tmp_path), tries=1030, pause=0.0)
    monkeypatch.setattr(supervisor, "_start", lambda: 1)
    assert supervisor.run() == 75
    assert "1030 starts in a row brought no new checkpoint" in capsys.readouterr().err
