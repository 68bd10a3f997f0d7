"""Models with bad steps: a loss or gradients that are not finite, or a loss that is far too large."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from comera_dist.config.tree import Config
from comera_dist.models.family import build_model
from comera_dist.run.train import ModelFactory


class _NoGradient(torch.autograd.Function):
    """The loss as it is, whose gradients are not finite."""

    @staticmethod
    def forward(context, loss):
        return loss.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.nan


POISONS: dict[str, Callable[[Tensor], Tensor]] = {
    "loss": lambda loss: loss * torch.nan,
    "gradient": _NoGradient.apply,
    "spike": lambda loss: loss * 50,
}


def poisoned_model(config: Config, poison: Callable[[tuple[Tensor, ...]], str | None]) -> ModelFactory:
    """Builds the model of `config`; `poison` names the poison of a training pass with certain inputs."""

    def spoil(module: nn.Module, inputs: tuple[Tensor, ...], loss: Tensor) -> Tensor:
        kind = poison(inputs) if module.training else None
        return loss if kind is None else POISONS[kind](loss)

    def build(plan, generator):
        model = build_model(config.model, plan, generator)
        model.register_forward_hook(spoil)
        return model

    return build


class MarkedRows:
    """Rows of a run, of which those with the numbers `bad` consist of zeros."""

    def __init__(self, examples, bad: list[int]):
        self._examples, self._bad = examples, bad

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, row_B, draw_B):
        batch, is_bad_B = self._examples.batch(row_B, draw_B), torch.from_numpy(np.isin(draw_B, self._bad))
        return batch._replace(inputs_BS=batch.inputs_BS.masked_fill(is_bad_B[:, None], 0))


def is_marked(inputs: tuple[Tensor, ...]) -> bool:
    """Whether a pass has a row of zeros."""
    return bool((inputs[0] == 0).all(1).any())
