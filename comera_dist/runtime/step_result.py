"""What processes tell each other in a training step, and what comes of it."""

from dataclasses import dataclass
from typing import NamedTuple


class Requests(NamedTuple):
    """What a process asks of all of them after the step; what one asks for, all do."""

    stop: bool = False
    save: bool = False


NO_REQUESTS = Requests()


@dataclass(frozen=True)
class StepResult:
    """Mean loss in nats a target and gradient norm before clipping, over all processes."""

    loss: float
    grad_norm: float
    requests: Requests = NO_REQUESTS
