"""Keys and values of grouped-query attention in the form that torch's fused kernels take.

Shapes: B batch, H query heads, K key-value heads, S queries, T keys, E head width.
"""

import torch
from torch import Tensor


def for_fused_kernels(q_BHSE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, has_mask: bool) -> tuple[Tensor, Tensor]:
    """Keys and values, of a head for each query head where a GPU has no fused kernel for fewer.

    On a GPU only flash attention lets query heads share a key head, and it takes 16 bits and no mask. Without a fused
    kernel torch would keep all S x T weights of every head for the backward pass.
    """
    group = q_BHSE.shape[1] // k_BKTE.shape[1]
    takes_groups = q_BHSE.device.type != "cuda" or (q_BHSE.dtype in (torch.bfloat16, torch.float16) and not has_mask)
    if group == 1 or takes_groups:
        return k_BKTE, v_BKTE
    return k_BKTE.repeat_interleave(group, 1), v_BKTE.repeat_interleave(group, 1)
