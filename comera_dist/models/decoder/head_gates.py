"""Gates of attention heads: each token multiplies the result of every head by a number between 0 and 2.

So a token can leave out what a head has found, which the weights of attention, whose sum is 1, do not let it. It is the
headwise gate after attention of Qiu et al. 2025, "Gated Attention for Large Language Models" (arXiv 2505.06708). Theirs
is a sigmoid; twice a sigmoid of zeros is 1, so a model starts as it would without gates.

Shapes: B batch, S sequence, D width, H heads, E head width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HeadGates(nn.Module):
    """y_h ← 2 · sigmoid(w_h · x) · y_h for the result y_h of each head: (B, S, D) and (B, S, H, E) → (B, S, H, E)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, width))

    def forward(self, x_BSD: Tensor, y_BSHE: Tensor) -> Tensor:
        gates_BSH = 2 * torch.sigmoid(F.linear(x_BSD, self.weight))
        return y_BSHE * gates_BSH[..., None]
