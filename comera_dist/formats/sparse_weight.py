"""A low-rank matrix plus a sparse one, and its product with an input.

Shapes: N inputs, M outputs, R rank, K stored entries, T tokens; x is (T, N), core_1 (N, R), core_2 (R, M), values (K,).
support (K,) holds the place of each value in the flattened matrix (N, M). The matrix is scale · core_1 core_2 + S.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comera_dist.ops.permutation import permute


@cache
def random_support(inputs: int, outputs: int, count: int) -> NDArray[Any]:
    """`count` different places of a matrix (N, M), in order: they follow from the three numbers alone.

    All sets of so many places are about as probable. Places are int32 if that can count the entries.
    """
    entries = inputs * outputs
    places = permute(np.arange(count), entries, key=("support", inputs, outputs))
    return np.sort(places).astype(place_type(entries))


def place_type(entries: int) -> type[np.signedinteger[Any]]:
    """The type of places in a matrix of so many entries."""
    return np.int32 if entries <= np.iinfo(np.int32).max else np.int64


def merge(core_1: Tensor, core_2: Tensor, values: Tensor, support: Tensor, scale: float) -> Tensor:
    """The matrix (N, M); differentiable, all of one dtype."""
    size = core_1.shape[0], core_2.shape[1]
    sparse = values.new_zeros(size[0] * size[1]).index_add_(0, support, values).view(size)
    # Added in place: the sum is rounded once, and selective recomputation, which keeps results of long products, does
    # not keep a matrix that is no activation.
    return sparse.addmm_(core_1, core_2, alpha=scale)


def multiply(x_TN: Tensor, core_1: Tensor, core_2: Tensor, values: Tensor, support: Tensor, scale: float) -> Tensor:
    """x times the matrix, (T, M); differentiable once, all of one dtype.

    The backward pass merges the matrix again. So no layer keeps one, and one matrix (N, M) exists at a time.
    """
    y: Tensor = _Product.apply(x_TN, core_1, core_2, values, support, scale)  # type: ignore[no-untyped-call]  # torch has no annotation
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, core_1: Tensor, core_2: Tensor, values: Tensor, support: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(x, core_1, core_2, values, support)
        ctx.scale = scale
        return x @ merge(core_1, core_2, values, support, scale)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor, None, None]:
        x, core_1, core_2, values, support = ctx.saved_tensors
        # An expression, not a variable: the merged matrix is freed before its gradient is made.
        grad_x = grad_y @ merge(core_1, core_2, values, support, ctx.scale).T if ctx.needs_input_grad[0] else None
        # The values need single entries of this product. Gathering their rows of x and grad_y would take K · T numbers.
        grad_NM = x.T @ grad_y
        grad_values = grad_NM.view(-1).index_select(0, support)
        grad_1, grad_2 = (grad_NM @ core_2.T).mul_(ctx.scale), (core_1.T @ grad_NM).mul_(ctx.scale)
        return grad_x, grad_1, grad_2, grad_values, None, None
