"""What a linear layer reads, and how the loss depends on what it writes, as second moments over calibration tokens.

Shapes: T tokens, N inputs, M outputs of a layer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass
class Moments:
    """Sums over tokens in fp32: x xᵀ of a layer's inputs, and g gᵀ of the loss's gradients at its outputs."""

    inputs_NN: Tensor
    gradients_MM: Tensor


def measured_moments(
    model: nn.Module, layers: Mapping[str, nn.Module], batches: Iterable[NamedTuple], device: torch.device
) -> dict[str, Moments]:
    """The moments of `layers`, by name, over all tokens of `batches`, of which `model` computes the summed loss."""
    found: dict[str, Moments] = {}
    hooks = [_watch(layer, name, found) for name, layer in layers.items()]
    try:
        for batch in batches:
            model(*(tensor.to(device) for tensor in batch)).backward()
            model.zero_grad()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _watch(layer: nn.Module, name: str, found: dict[str, Moments]) -> RemovableHandle:
    """From now on each pass through `layer` adds to its moments."""

    def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x_TN = inputs[0].detach().flatten(0, -2).float()
        moments = found.setdefault(name, Moments(*(x_TN.new_zeros(n, n) for n in (x_TN.shape[1], output.shape[-1]))))
        moments.inputs_NN.addmm_(x_TN.T, x_TN)
        output.register_hook(  # type: ignore[no-untyped-call]  # torch has no types for it
            lambda gradient: _add_square(moments.gradients_MM, gradient)
        )

    return layer.register_forward_hook(add)


def _add_square(sum_MM: Tensor, gradient: Tensor) -> None:
    g_TM = gradient.flatten(0, -2).float()
    sum_MM.addmm_(g_TM.T, g_TM)
