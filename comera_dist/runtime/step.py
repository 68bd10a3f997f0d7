"""What a training step takes and returns besides tensors: its seed, requests, figures, and their checks."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from comera_dist.errors import TrainingError

Norms = dict[str, dict[str, float | None]]  # Frobenius norms: by quantity, then by layer


class Requests(NamedTuple):
    """A process's requests to all processes after the step. One request is enough: all processes comply."""

    stop: bool = False
    save: bool = False


NO_REQUESTS = Requests()


@dataclass(frozen=True)
class StepResult:
    """Mean loss in nats a target and gradient norm before clipping, over all processes.

    `targets` counts the targets of which it is the mean; None if a checkpoint of an earlier version does not tell.
    `is_applied` is False if the parameters stayed as they were, because a figure is not finite or the loss is refused.
    `norms` are None unless they were asked for and the step was applied.
    """

    loss: float
    grad_norm: float
    requests: Requests = NO_REQUESTS
    is_applied: bool = True
    targets: int | None = None
    norms: Norms | None = None


def check_validation(loss: float, step: int) -> None:
    """TrainingError if the loss on held-out rows is not finite, so that such a run is not called finished."""
    if not math.isfinite(loss):
        raise TrainingError(
            f"the validation loss at step {step} is {loss}, expected a finite number; lower optim.lr, set "
            f"train.precision=fp32 where it is bf16, and start the run anew under another run.name"
        )


def seed_step(seed: int, step: int, process_index: int) -> None:
    """Seeds torch by (seed, step, process), so that there is no state of random numbers to save."""
    # 65,537 exceeds any number of processes, and the prime 1,000,003 any usual number of steps: few seeds coincide.
    torch.manual_seed(((seed * 1_000_003 + step) * 65_537 + process_index) % 2**63)
