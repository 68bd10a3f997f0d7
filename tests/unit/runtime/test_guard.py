"""Stops, the watchdog, and steps that are not finite."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from comera_dist.errors import TrainingError
from comera_dist.runtime.engine import StepResult
from comera_dist.runtime.guard import StopSignal, Watchdog, check_finite, seed_step


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_noted_and_the_handler_given_back(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
    assert signal.getsignal(number) == before


def test_the_watchdog_ends_a_process_that_hangs():
    code = "import time; from comera_dist.runtime.guard import Watchdog\nwith Watchdog(1): time.sleep(60)"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 75
    assert time.monotonic() - started < 30
    assert "No step was finished for train.timeout_seconds = 1" in done.stderr


def test_the_watchdog_lets_a_working_process_be():
    with Watchdog(1) as watchdog:
        for _ in range(8):
            time.sleep(0.2)
            watchdog.alive()


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_a_step_that_is_not_finite_ends_the_run(loss, norm):
    with pytest.raises(TrainingError, match=r"step 7 has loss .* lower optim.lr"):
        check_finite(StepResult(loss, norm, False), 7)
    check_finite(StepResult(1.0, 1.0, False), 7)


def test_random_numbers_are_a_function_of_seed_step_and_process():
    def draw(*place):
        seed_step(*place)
        return torch.rand(3).tolist()

    assert draw(1, 5, 0) == draw(1, 5, 0)
    assert len({tuple(draw(*place)) for place in [(1, 5, 0), (2, 5, 0), (1, 6, 0), (1, 5, 1)]}) == 4
