"""The module of the format `shared`.

Shapes: A matrices, N in-features, M out-features; x is (…, N).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from comera_dist.formats.dense_layers import Then
from comera_dist.formats.shared import SharedPlan
from comera_dist.ops.products import linear


class SharedMatrix(nn.Module):
    """A matrix (M, N) that is multiplied by a coefficient in a call, because ZeRO stage 3 gathers parameters at calls.

    It has no values until they are drawn or loaded.
    """

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, coefficient: Tensor) -> Tensor:
        return torch.mul(coefficient, self.weight)


class SharedLinear(nn.Module):
    """y (…, M) of x (…, N) by W = Σ_a mixture_a · matrix_a, with the bias if there is one.

    `share` must name the matrices before the first call. They are modules of other blocks or of this layer, kept as a
    plain tuple: each is registered with its owner alone, so it has one name and counts once.
    """

    def __init__(self, plan: SharedPlan, bias: bool = False):
        super().__init__()
        self.plan = plan
        self.mixture = nn.Parameter(first_mixture(plan))
        self.shared = SharedMatrix(plan.outputs, plan.inputs) if plan.owns_matrix else None
        self.bias = nn.Parameter(torch.zeros(plan.outputs)) if bias else None
        self.in_features, self.out_features = plan.inputs, plan.outputs
        self._matrices: tuple[SharedMatrix, ...] = ()

    def share(self, matrices: Sequence[SharedMatrix]) -> None:
        """Takes the A matrices of which this layer mixes its weight."""
        assert len(matrices) == self.plan.matrices
        self._matrices = tuple(matrices)

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        """y, or then(x, W)."""
        weight_MN = self.to_dense()
        return linear(x, weight_MN, self.bias) if then is None else then(x, weight_MN)

    def to_dense(self) -> Tensor:
        """W (M, N); differentiable."""
        parts = [matrix(c) for c, matrix in zip(self.mixture.unbind(), self._matrices, strict=True)]
        weight_MN: Tensor = sum(parts[1:], parts[0])
        return weight_MN

    def extra_repr(self) -> str:
        return f"{self.plan.inputs} → {self.plan.outputs}, {self.plan.description}, bias={self.bias is not None}"


def first_mixture(plan: SharedPlan) -> Tensor:
    """The mixture (A,) at the start, a unit vector.

    The first A blocks have a matrix each. Later ones have the sums of two matrices with neighbouring numbers, then the
    differences, and so on in turn. So fewer blocks start equal than with single matrices in turn, and each weight
    starts from at most two.
    docs/recipe.md compares this with other starts.
    """
    assert plan.place is not None
    count = plan.matrices
    if plan.place <= count or count == 1:
        return torch.eye(count)[min(plan.place, count) - 1].clone()  # a row alone, not a view of all
    turn, first = divmod(plan.place - count - 1, count - 1)
    mixture_A = torch.zeros(count)
    mixture_A[first], mixture_A[first + 1] = 1, (-1) ** turn
    return mixture_A / math.sqrt(2)
