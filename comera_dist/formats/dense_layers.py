"""Modules of dense weights.

Shapes: N in-features, M out-features, K width of a hidden state; x is (…, N).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from comera_dist.formats.dense import DensePlan

# Of a hidden state (…, K) and the weight (M, K) that it is multiplied by: what is wanted in place of their product.
Then = Callable[[Tensor, Tensor], Tensor]


class DenseLinear(nn.Linear):
    """nn.Linear, which can also hand its weight to a function that avoids the whole product, as a loss does."""

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        return super().forward(x) if then is None else then(x, self.weight)


def build_dense(plan: DensePlan, std: float, generator: torch.Generator | None, bias: bool) -> nn.Module:
    """A linear layer or a table with entries N(0, std²); without values where there is no generator."""
    module: nn.Module
    if plan.is_embedding:
        # Not nn.Embedding(rows, width), which draws its weight: seconds for numbers that are drawn again or loaded.
        module = nn.Embedding.from_pretrained(torch.empty(plan.inputs, plan.outputs), freeze=False)
    else:
        module = DenseLinear(plan.inputs, plan.outputs, bias=bias)
    if generator is not None:
        nn.init.normal_(module.weight, std=std, generator=generator)
        if bias and not plan.is_embedding:
            nn.init.zeros_(module.bias)
    return module
