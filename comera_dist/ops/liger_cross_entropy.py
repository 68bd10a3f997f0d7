"""Loss and gradients of a linear vocabulary projection by Liger's fused kernel, for GPUs.

Shapes: T tokens, V vocabulary, K width of the hidden state. This module needs liger_kernel: import it where it is used.
"""

import torch
from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward
from torch import Tensor


def liger_loss_and_gradients(
    hidden_TK: Tensor, weight_VK: Tensor, targets_T: Tensor, chunk: int, ignore_index: int, wants_gradients: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The same as cross_entropy.chunked_loss_and_gradients, of float32, bfloat16 or float16 and at least one token.

    The weight's gradient is added up in fp32 and rounded once to the dtype of the product. Liger's chunks hold
    about `chunk`·V logits, or T·K where that is more.

    Liger's own autograd function is left out: its backward waits for the GPU, and scales what it kept in place, so
    that a second backward would be wrong. The forward pass waits for the GPU once, to count the targets.
    """
    (tokens, width), vocabulary = hidden_TK.shape, weight_VK.shape[0]
    loss, _, _, _, grad_hidden_TK, grad_weight_VK, _ = fused_linear_cross_entropy_forward(
        hidden_TK,
        weight_VK.contiguous(),  # its strides become those of the buffer that products are added to
        targets_T,
        ignore_index=ignore_index,
        reduction="sum",
        accum_dtype=torch.float32,
        compute_gradients=wants_gradients,
        weight_requires_grad=wants_gradients,
        chunk_mem_const=-(-chunk * vocabulary // (tokens * width)),
    )
    return loss, grad_hidden_TK if wants_gradients else None, grad_weight_VK
