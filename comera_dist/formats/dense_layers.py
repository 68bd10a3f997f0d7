"""Modules of dense weights, and of removed ones.

Shapes: N in-features, M out-features, K width of a hidden state; x is (…, N).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from comera_dist.formats.dense import DensePlan
from comera_dist.formats.removed import RemovedPlan
from comera_dist.ops.autocast import compute_dtype
from comera_dist.ops.block_logits import Weights
from comera_dist.ops.products import linear

# Maps a hidden state (…, K) and a weight (M, K) to the tensor that is wanted instead of their `block_logits` (…, M).
Then = Callable[[Tensor, Weights], Tensor]


class DenseLinear(nn.Linear):
    """nn.Linear, which can also hand its weight to a function that avoids the whole product, as a loss does."""

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        return linear(x, self.weight, self.bias) if then is None else then(x, self.weight)


def build_dense(
    plan: DensePlan, std: float, generator: torch.Generator | None, bias: bool
) -> DenseLinear | nn.Embedding:
    """A linear layer or a table with entries N(0, std²) and a bias of zeros; without a generator it has no values."""
    module: DenseLinear | nn.Embedding
    if plan.is_embedding:
        # Not nn.Embedding(rows, width), which draws its weight: seconds for numbers that are drawn again or loaded.
        blank = torch.empty(plan.inputs, plan.outputs)
        module = nn.Embedding.from_pretrained(blank, freeze=False)  # type: ignore[no-untyped-call]  # torch's omission
    else:
        module = DenseLinear(plan.inputs, plan.outputs, bias=bias)
    if generator is not None:
        nn.init.normal_(module.weight, std=std, generator=generator)
        if isinstance(module, DenseLinear) and bias:
            nn.init.zeros_(module.bias)
    return module


class RemovedLinear(nn.Module):
    """Maps x to zeros (…, M), or to the bias (M,) if there is one; its gradient with respect to x is zero."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False):
        super().__init__()
        self.plan = RemovedPlan(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        # Zeros that depend on x: a parameter whose gradient is None would be another case for every ZeRO stage.
        zeros = (x[..., :1].to(compute_dtype(x)) * 0).expand(*x.shape[:-1], self.plan.outputs)
        return zeros if self.bias is None else zeros + self.bias.to(zeros.dtype)

    def to_dense(self) -> Tensor:
        """Zeros (M, N)."""
        like = torch.empty(0) if self.bias is None else self.bias
        return like.new_zeros(self.plan.outputs, self.plan.inputs)

    def extra_repr(self) -> str:
        return f"{self.plan.inputs} → {self.plan.outputs}, removed"
