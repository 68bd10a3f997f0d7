"""Loss and gradients of a linear vocabulary projection by Liger's fused kernel, for GPUs.

Shapes: T tokens, V vocabulary, K width of the hidden state. Importing this module needs liger_kernel.
"""

from collections.abc import Sequence

import torch
from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward
from torch import Tensor

from comera_dist.ops.targets import IGNORED_TARGET


def liger_loss_and_gradients(
    hidden_TK: Tensor, blocks: Sequence[Tensor], targets_T: Tensor, chunk: int, wants_gradients: bool
) -> tuple[Tensor, Tensor | None, Sequence[Tensor] | None]:
    """Like cross_entropy.chunked_loss_and_gradients, for a single block and at least one token.

    The dtype is float32, bfloat16 or float16.

    The weight's gradient is added up in fp32 and rounded once to the dtype of the products. A chunk of Liger holds
    about `chunk`·V logits, or T·K if that is more.

    Liger's own autograd function is not used: its backward waits for the GPU and scales saved tensors in place, so a
    second backward would be wrong. The forward pass waits for the GPU once, to count the targets.
    """
    (weight_VK,) = blocks
    (tokens, width), vocabulary = hidden_TK.shape, weight_VK.shape[0]
    loss, _, _, _, grad_hidden_TK, grad_weight_VK, _ = fused_linear_cross_entropy_forward(
        hidden_TK,
        weight_VK.contiguous(),  # Liger gives its buffer for the weight's gradient the same strides
        targets_T,
        ignore_index=IGNORED_TARGET,
        reduction="sum",
        accum_dtype=torch.float32,
        compute_gradients=wants_gradients,
        weight_requires_grad=wants_gradients,
        chunk_mem_const=-(-chunk * vocabulary // (tokens * width)),
    )
    return (loss, grad_hidden_TK, [grad_weight_VK]) if wants_gradients else (loss, None, None)
