"""An end before a broken update is saved or called a result, and random numbers that need no state."""

import math

import torch

from comera_dist.errors import TrainingError
from comera_dist.runtime.step_result import StepResult


def check_finite(result: StepResult, step: int, saved_step: int | None) -> None:
    """TrainingError where loss or gradient norm is not finite: nothing is saved from such a step.

    `saved_step` is that of the newest checkpoint of the run.
    """
    if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
        found = f"step {step} has loss {result.loss} and gradient norm {result.grad_norm}, expected finite numbers"
        advice = "lower optim.lr or lengthen schedule.warmup_steps"
        if saved_step is None:
            raise TrainingError(f"{found}; no checkpoint was saved before it: {advice}, and start again")
        raise TrainingError(f"{found}; the checkpoint of step {saved_step} is intact: {advice}, and resume")


def check_validation(loss: float, step: int) -> None:
    """TrainingError where the loss on held-out rows is not finite: a run with such a model is not done."""
    if not math.isfinite(loss):
        raise TrainingError(
            f"the validation loss at step {step} is {loss}, expected a finite number; lower optim.lr, set "
            f"train.precision=fp32 where it is bf16, and start the run anew under another run.name"
        )


def seed_step(seed: int, step: int, process_index: int) -> None:
    """Makes the random numbers of a step a function of (seed, step, process): there is no RNG state to save."""
    torch.manual_seed(((seed * 1_000_003 + step) * 65_537 + process_index) % 2**63)
