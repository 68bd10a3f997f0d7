"""An optimizer from outside the package: it steps whole tensor-train cores, and has settings of its own."""

from contextlib import contextmanager

import torch

from comera_dist.config.fields import Fraction, Section
from comera_dist.config.registry import OPTIMIZERS
from comera_dist.optim.base import MEAN, Method


class Settings(Section):
    momentum: Fraction = 0.9


class HeavyBall(Method):
    """Gradient descent with momentum, whose steps have the norm lr whatever the core."""

    name = "heavy_ball"
    roles = {"momentum_buffer": MEAN}  # noqa: RUF012
    takes = ("cores",)
    section = Settings
    needs_whole = True

    def build(self, groups):
        return Normalized(groups, self.config.lr, self.config.own("heavy_ball", Settings).momentum)


class Normalized(torch.optim.Optimizer):
    def __init__(self, groups, lr, momentum):
        super().__init__(groups, {"lr": lr})
        self._momentum = momentum

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for core in group["params"]:
                state = self.state[core]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(core))
                buffer.mul_(self._momentum).add_(core.grad)
                core.add_(buffer, alpha=-group["lr"] / (buffer.norm() + 1e-12).item())


@contextmanager
def added():
    """Makes it known as optim.kind=heavy_ball."""
    OPTIMIZERS.add("heavy_ball", HeavyBall)
    try:
        yield
    finally:
        OPTIMIZERS.remove("heavy_ball")
