"""A linear layer of two plain factors.

Shapes: N in-features, R rank, M out-features; x is (…, N), y is (…, M).
"""

import torch
from torch import Tensor, nn


class LowRankLinear(nn.Module):
    """y = x U V + bias with U (N, R) and V (R, M); the product starts with entries of variance 1/N and a zero bias."""

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = False):
        super().__init__()
        self.U_NR = nn.Parameter(torch.randn(in_features, rank) * in_features**-0.5)
        self.V_RM = nn.Parameter(torch.randn(rank, out_features) * rank**-0.5)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = (x @ self.U_NR) @ self.V_RM
        return y if self.bias is None else y + self.bias.to(y.dtype)
