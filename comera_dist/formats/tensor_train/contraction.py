"""Merges trains of small cores into few large matrices, or contracts an input with them core by core.

Shapes: every core is (A, V, E, B): bonds A and B, a vocabulary (or feature) mode V and a width mode E, which
is 1 in linear layers; cores of equal trains may be stacked along a leading dimension L. N in-features, M
out-features, R the rank of the bond at which a train is split into two halves.
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from opt_einsum import contract_expression
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction_plan import ContractionPlan
from comera_dist.formats.tensor_train.merge_order import merge_order
from comera_dist.formats.tensor_train.train_shapes import TTMShape, TTShape
from comera_dist.ops.autocast import compute_dtype, without_autocast


def merge_chain(cores_AVEB: Sequence[Tensor]) -> Tensor:
    """Merges neighbouring cores into one tensor (A, V, E, B), cheapest order first, as plain matrix products.

    Stacks of cores (L, A, V, E, B) are merged in batched products. Runs in the cores' own precision even under
    autocast: the products are small and every token depends on them.
    """
    chain = list(cores_AVEB)
    bonds = (*(core.shape[-4] for core in chain), chain[-1].shape[-1])
    modes = tuple(core.shape[-3] * core.shape[-2] for core in chain)
    with without_autocast(chain[0]):
        for k in merge_order(bonds, modes):
            chain[k : k + 2] = [_merge_pair(chain[k], chain[k + 1])]
    return chain[0]


def merge_sides(cores: Sequence[Tensor], shape: TTShape) -> tuple[Tensor, Tensor]:
    """The factors U (N, R) and V (R, M) of a linear layer; rows and columns that only pad the modes are sliced away."""
    middle = shape.left_cores
    return merge_in_side(cores[:middle], shape.inputs), merge_out_side(cores[middle:], shape.outputs)


def merge_in_side(cores: Sequence[Tensor], in_features: int) -> Tensor:
    """U (N, R) of in-mode cores (r, n, r'); stacks (L, r, n, r') give (L, N, R)."""
    return merge_chain([core.unsqueeze(-2) for core in cores]).flatten(-4, -2)[..., :in_features, :]


def merge_out_side(cores: Sequence[Tensor], out_features: int) -> Tensor:
    """V (R, M) of out-mode cores (r, m, r'); stacks (L, r, m, r') give (L, R, M)."""
    return merge_chain([core.unsqueeze(-2) for core in cores]).flatten(-3, -1)[..., :out_features]


def merge_table(cores: Sequence[Tensor], shape: TTMShape) -> Tensor:
    """The whole embedding table (V, D)."""
    return merge_chain(cores).squeeze(3).squeeze(0)[: shape.inputs, : shape.outputs]


def _merge_pair(left_AVEB: Tensor, right_BWFC: Tensor) -> Tensor:
    stack, (a, v, e, b), (w, f, c) = left_AVEB.shape[:-4], left_AVEB.shape[-4:], right_BWFC.shape[-3:]
    product = left_AVEB.reshape(*stack, a * v * e, b) @ right_BWFC.reshape(*stack, b, w * f * c)
    return product.reshape(*stack, a, v, e, w, f, c).transpose(-4, -3).reshape(*stack, a, v * w, e * f, c)


def contract_chain(x: Tensor, cores: list[Tensor], shape: TTShape, plan: ContractionPlan) -> Tensor:
    """y (…, M) of x (…, N) and cores (r, mode, r'), in opt_einsum's order and in the dtype of x or of autocast.

    Backward keeps the tensors between the cores.
    """
    dtype = compute_dtype(x)
    x_TN = F.pad(x.reshape(-1, shape.inputs).to(dtype), (0, prod(shape.in_modes) - shape.inputs))
    operands = [x_TN.view(-1, *shape.in_modes), *(core.to(dtype) for core in cores)]
    expression = _expression(plan.equation, plan.order, ((1, *shape.in_modes), *shape.core_shapes))
    contracted: Tensor = expression(*operands, backend="torch")
    y_TM = contracted.flatten(2).squeeze(0)
    return y_TM[:, : shape.outputs].reshape(*x.shape[:-1], shape.outputs)


@cache
def _expression(equation: str, order: tuple[tuple[int, ...], ...], shapes: tuple[tuple[int, ...], ...]) -> Any:
    """opt_einsum's callable; it reads sizes only to find an order, which the plan has."""
    return contract_expression(equation, *shapes, optimize=order)
