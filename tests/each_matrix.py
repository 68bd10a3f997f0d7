"""One matrix that an optimizer of `optim.each_matrix` steps alone, for tests of its formulas."""

import hashlib

import torch
from support import TINY
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.config.registry import OPTIMIZERS

NAME = "model.layers.0.self_attn.q_proj"


class Alone:
    """The weight of the layer NAME, of `shape`, with its optimizer; `overrides` are keys of the configuration."""

    def __init__(self, kind, shape, *overrides):
        config = read_config(None, [*TINY, "model.format=dense", f"optim.kind={kind}", *overrides]).optim
        self._matrix = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(7)))
        self.method = OPTIMIZERS[kind](config)
        self.method.prepare(_model(self._matrix))
        group = {"params": [self._matrix], "method": self.method, "lr": config.lr, "weight_decay": config.weight_decay}
        self._optimizer = self.method.build([group])

    @property
    def weight(self):
        return self._matrix.detach().clone()

    @property
    def state(self):
        return self._optimizer.state[self._matrix]

    def make(self, gradients, lr):
        """Steps with these gradients."""
        self._optimizer.param_groups[0]["lr"] = lr
        for gradient in gradients:
            self._matrix.grad = gradient.clone()
            self._optimizer.step()

    def update(self, gradient):
        """What a step with learning rate 1 subtracts from the weight, besides its decay."""
        group = self._optimizer.param_groups[0]
        before, decay, group["weight_decay"] = self.weight, group["weight_decay"], 0.0
        self.make([gradient], lr=1.0)
        group["weight_decay"] = decay
        return before - self.weight


def seed_of(key):
    """Of the random numbers that follow from a text."""
    return int(hashlib.blake2b(key.encode(), digest_size=4).hexdigest(), 16)


def gradients(shape, count):
    """Random gradients, always the same."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def _model(matrix):
    """A model with the layer of the matrix."""
    layer = nn.Module()
    layer.weight = matrix
    for name in reversed(NAME.split(".")):
        outer = nn.Module()
        outer.add_module(name, layer)
        layer = outer
    return layer
