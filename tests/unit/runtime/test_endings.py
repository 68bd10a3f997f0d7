"""Stops, the watchdog, and the death of a launcher."""

import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from comera_dist.runtime.endings import KeptStream, StopSignal, Watchdog, alive

NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP]


def python(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def without_nohup():
    """Hanging up ends the process, as without nohup, which may have started these tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_noted_and_the_handler_given_back(number, without_nohup):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.reason == f"signal {number.name}"
    assert signal.getsignal(number) == before


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_than_the_main_one_leaves_signals_alone():
    """As that of a server or a notebook, which calls comera_dist.train."""

    def enter() -> list:
        with StopSignal():
            return [signal.getsignal(number) for number in NUMBERS]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() == [signal.getsignal(number) for number in NUMBERS]


def test_a_signal_before_the_first_step_ends_the_process_with_a_sentence():
    done = python(
        "import os, signal, time; from comera_dist.runtime.endings import EndAtOnce\n"
        "with EndAtOnce(): os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    )
    assert done.returncode == 75
    assert done.stderr == "Stopped by signal SIGINT before the first step; start the same command again.\n"


def test_the_watchdog_ends_a_process_that_hangs():
    started = time.monotonic()
    done = python("import time; from comera_dist.runtime.endings import Watchdog\nwith Watchdog(0.5): time.sleep(60)")
    assert done.returncode == 75
    assert time.monotonic() - started < 30
    assert "made no progress for train.timeout_seconds = 0.5" in done.stderr


def test_the_watchdog_lets_a_working_process_be():
    with Watchdog(1):
        for _ in range(8):
            time.sleep(0.2)
            alive()


def test_a_process_whose_launcher_is_killed_is_asked_to_stop(tmp_path):
    (tmp_path / "worker.py").write_text(
        "import time; from comera_dist.runtime.endings import StopSignal\n"
        "with StopSignal() as stop:\n"
        "    print('started', flush=True)\n"
        "    end = time.monotonic() + 30\n"
        "    while not stop.requested and time.monotonic() < end: time.sleep(0.05)\n"
        "    print(stop.reason)"
    )
    (tmp_path / "torchrun").write_text(
        f"import subprocess, sys\nsubprocess.call([sys.executable, {str(tmp_path / 'worker.py')!r}])"
    )
    launcher = subprocess.Popen([sys.executable, tmp_path / "torchrun"], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout.readline() == "started\n"
    launcher.kill()
    assert launcher.stdout.read() == "the end of its launcher\n"
    launcher.wait()


def test_prints_to_a_closed_pipe_are_dropped():
    read, write = os.pipe()
    os.close(read)
    code = (
        "from comera_dist.runtime.endings import end, keep_streams\nkeep_streams()\nprint('lost', flush=True)\nend(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=write, timeout=60).returncode == 3
    os.close(write)


@pytest.mark.parametrize(
    ("encoding", "text", "written"),
    [
        ("latin-1", "lr 0.1 \u2192 0.2, 2×", b"lr 0.1 \\u2192 0.2, 2\xd7"),
        ("ascii", "2×", b"2\\xd7"),
        ("utf-8", "runs/\udcff \u2192", b"runs/\\udcff \xe2\x86\x92"),
    ],
)
def test_a_console_without_a_character_gets_an_escape(encoding, text, written):
    file = io.BytesIO()
    stream = KeptStream(io.TextIOWrapper(file, encoding=encoding))
    stream.write(text)
    stream.flush()
    assert file.getvalue() == written
