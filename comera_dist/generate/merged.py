"""A trained model as it is used: what a tensor train is merged to is merged once.

Shapes: N in-features, M out-features, R middle rank.
"""

import torch
from torch import nn

from comera_dist.formats.convert import densify
from comera_dist.formats.tensor_train.linear import TTLinear


@torch.no_grad()
def merge_once(model: nn.Module) -> nn.Module:
    """Replaces, in place, every linear tensor train by its two factors, or by its weight where that is smaller, and
    every embedding by its table; returns the model, which computes the same and is not to be trained any more."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, TTLinear) and _factors_are_smaller(layer):
            model.set_submodule(name, _factors(layer))
    return densify(model)


def _factors_are_smaller(layer: TTLinear) -> bool:
    N, M = layer.in_features, layer.out_features
    return layer.shape.middle_rank * (N + M) < N * M


def _factors(layer: TTLinear) -> nn.Sequential:
    U_NR, V_RM = layer.factors()
    inner = nn.Linear(U_NR.shape[0], U_NR.shape[1], bias=False, device=U_NR.device)
    outer = nn.Linear(V_RM.shape[0], V_RM.shape[1], bias=layer.bias is not None, device=U_NR.device)
    inner.weight.copy_(U_NR.T)
    outer.weight.copy_(V_RM.T)
    if layer.bias is not None:
        outer.bias.copy_(layer.bias)
    return nn.Sequential(inner, outer)
