"""Linear layers that share one input (q, k, v; gate, up) read it once.

Shapes: N in-features, R padded middle rank of one layer, M its out-features, R' the ranks of all layers together;
x is (…, N).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.capabilities import SharedInput
from comera_dist.ops.autocast import compute_dtype


def shared_input(x: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """[layer(x) for layer in layers], where layers that can share one product with x, and one with its gradient.

    Every layer is called, if only for its sides: a sharded layer gathers its parameters when it is called.
    """
    tokens, dtype = x.numel() // x.shape[-1], compute_dtype(x)
    shares = [isinstance(layer, SharedInput) and layer.shares_input(tokens, dtype) for layer in layers]
    if sum(shares) < 2:
        return [layer(x) for layer in layers]
    sides = [layer() for layer, is_shared in zip(layers, shares, strict=True) if is_shared]
    U_NR = torch.cat([U for U, _ in sides], dim=1).to(x.dtype)
    narrow = iter((x @ U_NR).split([U.shape[1] for U, _ in sides], dim=-1))
    outsides = (V_RM for _, V_RM in sides)
    return [
        _outside(layer.bias, next(narrow), next(outsides), x.dtype) if is_shared else layer(x)
        for layer, is_shared in zip(layers, shares, strict=True)
    ]


def _outside(bias: Tensor | None, narrow: Tensor, V_RM: Tensor, dtype: torch.dtype) -> Tensor:
    return F.linear(narrow, V_RM.T.to(dtype), None if bias is None else bias.to(dtype))
