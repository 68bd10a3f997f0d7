"""A trained model as it is used: what a tensor train is merged to is merged once.

Shapes: N in-features, M out-features, R middle rank.
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.capabilities import Factored
from comera_dist.formats.convert import densify


@torch.no_grad()
def merge_once(model: nn.Module) -> nn.Module:
    """Replaces, in place, every layer of two factors by these, or by its weight where that is smaller, and every other
    layer by its dense equal. Returns the model, which computes the same and is not to be trained any more.

    ConfigError where a layer has no dense equal.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Factored):
            U_NR, V_RM = layer.factors()
            if U_NR.numel() + V_RM.numel() < U_NR.shape[0] * V_RM.shape[1]:
                model.set_submodule(name, _product(U_NR, V_RM, layer.bias))
    return densify(model)


def _product(U_NR: Tensor, V_RM: Tensor, bias_M: Tensor | None) -> nn.Sequential:
    inner = nn.Linear(U_NR.shape[0], U_NR.shape[1], bias=False, device=U_NR.device)
    outer = nn.Linear(V_RM.shape[0], V_RM.shape[1], bias=bias_M is not None, device=U_NR.device)
    inner.weight.copy_(U_NR.T)
    outer.weight.copy_(V_RM.T)
    if bias_M is not None:
        outer.bias.copy_(bias_M)
    return nn.Sequential(inner, outer)
