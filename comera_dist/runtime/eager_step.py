"""The training step as DeepSpeed makes it: a backward pass for every micro batch, then its own update."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from comera_dist.runtime.deepspeed_engine import DeepSpeedEngine
from comera_dist.runtime.forward import on_device


class EagerStep:
    """Gradients and update of one optimizer step through a DeepSpeed engine, at every ZeRO stage."""

    def __init__(self, engine: DeepSpeedEngine, model: nn.Module, stage: int, grad_clip: float):
        self._engine, self._model, self._stage, self._grad_clip = engine, model, stage, grad_clip

    def gradients(self, batches: list[NamedTuple], scale: float) -> Tensor:
        """This process's summed loss (0-dimensional). Leaves the gradients of loss · scale, averaged over micro batches
        and processes. Collective."""
        self._engine.train()
        total = torch.zeros((), device=self._engine.device)
        for index, batch in enumerate(batches):
            loss = self._engine(*on_device(batch, self._engine.device))
            self._engine.backward(loss * scale)
            total = total + loss.detach()
            if index < len(batches) - 1:
                self._engine.step()
        return total

    def update(self) -> float:
        """Clips, updates the parameters and returns the gradient norm before clipping. Collective."""
        if self._stage > 0:
            return zero_update(self._engine)
        norm = clip(self._model.parameters(), self._grad_clip)
        self._engine.step()
        return float(norm)


def zero_update(engine: DeepSpeedEngine) -> float:
    """DeepSpeed's update at ZeRO stages above 0, which clips by itself; returns the gradient norm before clipping."""
    engine.step()
    return float(engine.get_global_grad_norm())


def clip(parameters: Iterable[Tensor], largest_norm: float) -> Tensor:
    """Scales gradients down to a norm of `largest_norm` (0: no limit) and returns their norm before."""
    return nn.utils.clip_grad_norm_(parameters, largest_norm or float("inf"))
