"""Dropout whose masks cost little on a CPU: 16 random bits a number.

On a GPU everything is torch's own, which draws within the kernel. Shapes: B batch, H heads, S queries, K keys, E width
of a head.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = 1 << 16  # probabilities are multiples of 1 / LEVELS
WORDS = -(2**63), 2**63 - 1  # of four numbers each; the largest one is never drawn


class Dropout(nn.Dropout):
    """nn.Dropout by `dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


def dropout(x: Tensor, p: float) -> Tensor:
    """x with numbers set to zero with the probability p, the others divided by 1 - p.

    On a CPU p is rounded to a multiple of 2⁻¹⁶, so that the mean stays that of x, and the backward pass keeps a byte a
    number.
    """
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped = round(p * LEVELS)
    words = torch.randint(*WORDS, (-(-x.numel() // 4),))
    kept = (words.view(torch.int16)[: x.numel()] >= dropped - LEVELS // 2).view(x.shape)
    y: Tensor = _Dropout.apply(x, kept, LEVELS / (LEVELS - dropped) if dropped < LEVELS else 0.0)  # type: ignore[no-untyped-call]  # torch has no annotation
    return y


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (x * kept).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return (grad * kept).mul_(ctx.scale), None, None


def attention(q_BHSE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, keep_B11K: Tensor, p: float) -> Tensor:
    """Attention to the keys that `keep` names, with dropout of its weights: (B, H, S, E).

    torch has no fused attention with dropout on a CPU, so nothing is lost by writing it out.
    """
    if p == 0 or q_BHSE.device.type != "cpu":
        return F.scaled_dot_product_attention(q_BHSE, k_BHKE, v_BHKE, attn_mask=keep_B11K, dropout_p=p)
    bias_B11K = torch.zeros_like(keep_B11K, dtype=q_BHSE.dtype).masked_fill_(~keep_B11K, -math.inf)
    scores_BHSK = (q_BHSE / math.sqrt(q_BHSE.shape[-1])) @ k_BHKE.transpose(-1, -2)
    weights_BHSK = torch.softmax(scores_BHSK + bias_B11K, -1)
    return dropout(weights_BHSK.to(v_BHKE.dtype), p) @ v_BHKE
