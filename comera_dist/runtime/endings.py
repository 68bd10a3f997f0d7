"""How a process ends: politely at a signal or when its launcher is gone, by itself when nothing goes on any more.

Imports nothing heavy: a process can be stopped, or hang, long before torch is there.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

from comera_dist.runtime.launchers import find_place, has_ended, launching_ancestors

TRY_AGAIN_STATUS = 75  # EX_TEMPFAIL: stopped, hung or left alone; what was saved is good, the same command goes on
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)  # USR1: a scheduler's warning
POLL_SECONDS = 1.0

_progress = {"at": time.monotonic()}  # one for the process: it is the process that the watchdog ends


def alive() -> None:
    """Says that this process has made progress: a collective came back, a batch was measured, a tensor was read."""
    _progress["at"] = time.monotonic()


class Watchdog:
    """While entered, ends this process when `alive` was not called for `seconds`.

    A collective whose partner is gone may wait for ever.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds

    def __enter__(self):
        self._over = threading.Event()
        alive()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._over.set()

    def _watch(self) -> None:
        while time.monotonic() - _progress["at"] < self._seconds:
            if self._over.wait(min(5.0, self._seconds / 4)):
                return
        _warn(
            f"Process {os.getpid()} made no progress for train.timeout_seconds = {self._seconds}, so it or another "
            f"process hangs; it ends itself, start the same command again to resume."
        )
        end(TRY_AGAIN_STATUS)


class _Stops:
    """While entered, calls `_stop` with the reason when a signal asks this process to end or a launcher has died."""

    def __enter__(self):
        self._over = threading.Event()
        # nohup ignores SIGHUP on purpose.
        heeded = [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._at_signal) for number in heeded}
        if launching_ancestors():
            threading.Thread(target=self._watch_launchers, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _at_signal(self, number, frame) -> None:
        self._stop(f"signal {signal.Signals(number).name}")

    def _watch_launchers(self) -> None:
        """A launcher that is killed leaves its processes to themselves: they would train on beside the next start."""
        while not self._over.wait(POLL_SECONDS):
            if any(map(has_ended, launching_ancestors())):
                return self._stop("the end of its launcher")

    def _stop(self, reason: str) -> None:
        raise NotImplementedError


class StopSignal(_Stops):
    """Notes the request to stop, so that the run ends after a step. `reason` is None until there is one."""

    def __init__(self):
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def _stop(self, reason: str) -> None:
        self.reason = reason


class EndAtOnce(_Stops):
    """Ends the process at the request to stop: there is nothing to save yet."""

    def _stop(self, reason: str) -> None:
        if find_place().index == 0:
            _warn(f"Stopped by {reason} before the first step; start the same command again.")
        end(TRY_AGAIN_STATUS)


def end(status: int) -> NoReturn:
    """Ends this process without the interpreter's tear-down.

    DeepSpeed 0.19.8 at ZeRO stage 3 on gloo sometimes aborts in it after all work is done, which would turn a finished
    run into a failed one, and a logger's hooks may wait in it for ever.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _warn(sentence: str) -> None:
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)
