"""Merges the cores of a trained model once, for generation.

Shapes: N in-features, M out-features, R middle rank.
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.capabilities import Factored
from comera_dist.formats.convert import densify


@torch.no_grad()
def merge_once(model: nn.Module) -> None:
    """Replaces, in place, every layer below `model` by two factors or its dense equal, whichever is smaller.

    The model computes the same, but must not be trained any more. Raises ConfigError if a layer has no dense equal.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Factored):
            U_NR, V_RM = layer.factors()
            if U_NR.numel() + V_RM.numel() < U_NR.shape[0] * V_RM.shape[1]:
                model.set_submodule(name, _product(U_NR, V_RM, layer.bias))
    densify(model)


def _product(U_NR: Tensor, V_RM: Tensor, bias_M: Tensor | None) -> nn.Sequential:
    """Two linear layers that compute x @ U @ V + bias."""
    inner = nn.Linear(U_NR.shape[0], U_NR.shape[1], bias=False, device=U_NR.device)
    outer = nn.Linear(V_RM.shape[0], V_RM.shape[1], bias=bias_M is not None, device=U_NR.device)
    inner.weight.copy_(U_NR.T)
    outer.weight.copy_(V_RM.T)
    if bias_M is not None:
        outer.bias.copy_(bias_M)
    return nn.Sequential(inner, outer)
