"""Steps of an optimizer of whole matrices, on matrices of several sides, to compare them with a slow oracle."""

from typing import NamedTuple

import numpy as np
import torch
from support import TINY
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.optim.build import build_optimizer

SIDES = [(6, 10), (10, 6), (7, 7), (3, 9)]  # (M, N): wide, high, square, and with a side below most ranks
LR, DECAY = 0.1, 0.2
GROWS_AT = 3  # the number of the gradient that is five times as large as its size suggests


class Steps(NamedTuple):
    """By the parameter's name, in float64: the first weights, the gradient and the weights of every step."""

    first: dict[str, np.ndarray]
    gradients: dict[str, list[np.ndarray]]
    weights: dict[str, list[np.ndarray]]


def matrices(sides=SIDES) -> nn.Module:
    """Linear layers in blocks: layers.0.linear.weight and so on."""
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(columns, rows, bias=False) for rows, columns in sides]
    for layer in layers:
        layer.weight.data.normal_(generator=generator)
    return nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"linear": layer}) for layer in layers])})


def optimizer_of(model: nn.Module, *overrides: str) -> torch.optim.Optimizer:
    settings = ["model.format=dense", f"optim.lr={LR}", f"optim.weight_decay={DECAY}", "optim.eps=1e-6"]
    return build_optimizer(model, read_config(None, [*TINY, *settings, *overrides]).optim)


def set_gradients(model: nn.Module, step: int) -> None:
    """Random gradients; that of step GROWS_AT is large."""
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * (5 if step == GROWS_AT else 1)


def steps_of(*overrides: str, count: int = 6) -> Steps:
    model = matrices()
    optimizer, names = optimizer_of(model, *overrides), [name for name, _ in model.named_parameters()]
    found = Steps(as_numpy(model), {name: [] for name in names}, {name: [] for name in names})
    for step in range(count):
        set_gradients(model, step)
        for name, parameter in model.named_parameters():
            found.gradients[name].append(parameter.grad.double().numpy())
        optimizer.step()
        for name, weight in as_numpy(model).items():
            found.weights[name].append(weight)
    return found


def as_numpy(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict]:
    """The optimizer's state by the parameter's name."""
    return {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
