"""Linear layers that share one input (q, k, v; gate, up) read it once.

Shapes: N in-features, R padded middle rank of one layer, M its out-features; x is (…, N).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from comera_dist.formats.capabilities import SharedInput
from comera_dist.ops.autocast import compute_dtype
from comera_dist.ops.products import are_fp8, linear, multiply


def shared_input(x: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """[layer(x) for layer in layers]; layers that can share make one product with x, and one with its gradient.

    Every layer is called, if only for its sides: ZeRO stage 3 gathers a layer's parameters when the layer is called.
    """
    tokens, dtype = x.numel() // x.shape[-1], compute_dtype(x)
    if x.dtype == torch.float32 and not are_fp8():
        x = x.to(dtype)  # once: autocast would do it for each layer, and back for each gradient
    sharing = [layer for layer in layers if isinstance(layer, SharedInput) and layer.shares_input(tokens, dtype)]
    if len(sharing) < 2:
        return [layer(x) for layer in layers]
    sides = [layer() for layer in sharing]
    U_NR = torch.cat([U for U, _ in sides], dim=1).to(x.dtype)
    narrow = torch.split(multiply(x, U_NR), [U.shape[1] for U, _ in sides], dim=-1)
    shared = (
        linear(h, V_RM.T.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
        for layer, h, (_, V_RM) in zip(sharing, narrow, sides, strict=True)
    )
    return [next(shared) if layer in sharing else layer(x) for layer in layers]
