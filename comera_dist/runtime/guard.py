"""What keeps a long run safe: polite stops, a watchdog, and an end before a broken update is saved."""

import math
import os
import signal
import sys
import threading
import time

import torch

from comera_dist.errors import TrainingError
from comera_dist.runtime.engine import StepResult

HUNG_STATUS = 75  # EX_TEMPFAIL: start again, the checkpoint is good


class StopSignal:
    """While entered, notes SIGTERM, SIGINT and SIGUSR1 (a scheduler's warning), so that the run ends after a step."""

    def __enter__(self):
        self.requested = False
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *exception):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, frame) -> None:
        self.requested = True


class Watchdog:
    """While entered, ends this process when `alive` is not called for `seconds`.

    A collective whose partner is gone may wait for ever.
    """

    def __init__(self, seconds: int):
        self._seconds = seconds

    def __enter__(self):
        self._over = threading.Event()
        self.alive()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._over.set()

    def alive(self) -> None:
        self._last = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._last < self._seconds:
            if self._over.wait(min(5.0, self._seconds / 4)):
                return
        print(
            f"No step was finished for train.timeout_seconds = {self._seconds}; this process ends itself, "
            f"start the same command again to resume.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HUNG_STATUS)


def check_finite(result: StepResult, step: int) -> None:
    """TrainingError where loss or gradient norm is not finite: nothing is saved from such a step."""
    if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
        raise TrainingError(
            f"step {step} has loss {result.loss} and gradient norm {result.grad_norm}, expected finite numbers; "
            f"the last checkpoint is intact: lower optim.lr or lengthen schedule.warmup_steps, and resume"
        )


def seed_step(seed: int, step: int, process_index: int) -> None:
    """Makes the random numbers of a step a function of (seed, step, process): there is no RNG state to save."""
    torch.manual_seed(((seed * 1_000_003 + step) * 65_537 + process_index) % 2**63)
