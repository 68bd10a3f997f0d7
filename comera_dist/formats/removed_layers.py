"""The module of a linear layer that has lost all its ranks.

Shapes: N in-features, M out-features; x is (…, N).
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.removed import RemovedPlan


class RemovedLinear(nn.Module):
    """Maps x to zeros (…, M), or to the bias (M,) if there is one; its gradient with respect to x is zero."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False):
        super().__init__()
        self.plan = RemovedPlan(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        # Zeros that depend on x: a parameter whose gradient is None would be another case for every ZeRO stage.
        zeros = (x[..., :1] * 0).expand(*x.shape[:-1], self.plan.outputs)
        return zeros if self.bias is None else zeros + self.bias.to(x.dtype)

    def to_dense(self) -> Tensor:
        """Zeros (M, N)."""
        like = torch.empty(0) if self.bias is None else self.bias
        return like.new_zeros(self.plan.outputs, self.plan.inputs)

    def extra_repr(self) -> str:
        return f"{self.plan.inputs} → {self.plan.outputs}, removed"
