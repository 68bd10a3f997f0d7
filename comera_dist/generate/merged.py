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

    A layer without either stays. The model computes the same, but must not be trained any more.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Factored):
            U_NR, V_RM = layer.factors()
            if U_NR.numel() + V_RM.numel() < U_NR.shape[0] * V_RM.shape[1]:
                model.set_submodule(name, _product(U_NR, V_RM, layer.bias))
    densify(model, partly=True)


def _product(U_NR: Tensor, V_RM: Tensor, bias_M: Tensor | None) -> nn.Sequential:
    """Two linear layers that compute x @ U @ V + bias."""
    inner, outer = (nn.Linear(len(factor), factor.shape[1], bias=False, device="meta") for factor in (U_NR, V_RM))
    inner.weight, outer.weight = nn.Parameter(U_NR.T.contiguous()), nn.Parameter(V_RM.T.contiguous())
    if bias_M is not None:
        outer.bias = nn.Parameter(bias_M)
    return nn.Sequential(inner, outer)
