"""How a process ends: after a request to stop, when its launcher has died, or when it makes no progress.

Imports nothing heavy: a process can be stopped, or hang, before torch is imported.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

from comera_dist.runtime.launchers import find_place, has_ended, launching_ancestors

TRY_AGAIN_STATUS = 75  # EX_TEMPFAIL of sysexits.h: checkpoints are intact, the same command resumes the run
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)  # USR1: a scheduler's warning
POLL_SECONDS = 1.0  # chosen: soon enough that an orphan disturbs no restart

_progress = {"at": time.monotonic()}  # one for the process, because the watchdog ends the process


def alive() -> None:
    """Notes that this process has made progress: a collective came back, a batch was measured, a tensor was read."""
    _progress["at"] = time.monotonic()


class Watchdog:
    """While entered, ends this process if `alive` was not called for `seconds`.

    DeepSpeed's timeouts do not do this: they do not cover the groups that it makes for its collectives, so a collective
    whose partner has ended can wait for ever.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds

    def __enter__(self) -> None:
        self._over = threading.Event()
        alive()
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        pause = min(5.0, self._seconds / 4)
        while time.monotonic() - _progress["at"] < self._seconds:
            if self._over.wait(pause):
                return
        _warn(
            f"Process {os.getpid()} made no progress for train.timeout_seconds = {self._seconds}, so it or another "
            f"process hangs; it ends itself, start the same command again to resume. Its threads are at:"
        )
        _show_threads()
        time.sleep(2 * pause)  # the others notice within it, and show their threads too: the end of a process ends them
        end(TRY_AGAIN_STATUS)


def heeded_signals() -> list[signal.Signals]:
    """The signals that stop this process. Under nohup SIGHUP is ignored and must stay so."""
    return [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


class StopSignal:
    """While entered, notes in `reason` a request to stop: a signal, or the death of a launcher.

    Python gives signals to the main thread alone; on another one they keep the handlers that they have.
    """

    reason: str | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def __enter__(self) -> "StopSignal":
        self._over = threading.Event()
        is_main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._at_signal) for number in heeded_signals() if is_main}
        if launching_ancestors():
            threading.Thread(target=self._watch_launchers, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _at_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop(f"signal {signal.Signals(number).name}")

    def _watch_launchers(self) -> None:
        # DeepSpeed's launcher, if it is killed, leaves its processes running: they would train beside the next start.
        while not self._over.wait(POLL_SECONDS):
            if any(map(has_ended, launching_ancestors())):
                return self._stop("the end of its launcher")

    def _stop(self, reason: str) -> None:
        self.reason = reason


class EndAtOnce(StopSignal):
    """Ends the process at a request to stop, where there is nothing to save yet."""

    def _stop(self, reason: str) -> None:
        if find_place().index == 0:
            _warn(f"Stopped by {reason} before the first step; start the same command again.")
        end(TRY_AGAIN_STATUS)


class KeptStream:
    """A text stream whose writes never fail: text for a closed pipe or a full disk is dropped.

    Characters that its encoding lacks, as Latin-1 lacks an arrow, are written as escapes.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_streams() -> None:
    """From now on no print ends this process."""
    sys.stdout, sys.stderr = KeptStream(sys.stdout), KeptStream(sys.stderr)


def end(status: int) -> NoReturn:
    """Ends this process without the interpreter's tear-down.

    DeepSpeed 0.19.8 at ZeRO stage 3 on gloo sometimes aborts there after all work is done, which would turn a finished
    run into a failed one; and a logger's exit hooks may wait for ever.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _show_threads() -> None:
    """Prints the calls in which the threads of this process are, without waiting for any of them."""
    with suppress(OSError, ValueError):
        faulthandler.dump_traceback(sys.stderr.fileno())


def _warn(sentence: str) -> None:
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)
