"""Capabilities of modules that store a weight, asked for by type: `isinstance(layer, ToDense)`.

Shapes: N in-features, M out-features, K width of a narrow intermediate; V rows of a table, D its width.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.base import MatrixPlan, Resizable
from comera_dist.ops.block_logits import Weights


@runtime_checkable
class ToDense(Protocol):
    """A layer that equals a dense layer."""

    def to_dense(self) -> Tensor:
        """The weight (M, N) as nn.Linear stores it, or the table (V, D); differentiable."""


@runtime_checkable
class Factored(Protocol):
    """A linear layer that is a product of two narrow matrices."""

    bias: Tensor | None

    def factors(self) -> tuple[Tensor, Tensor]:
        """U (N, K) and V (K, M), gates included."""


@runtime_checkable
class FactoredTable(Protocol):
    """A table that may be a product of two matrices: it is one if its plan has a `table_rank` K."""

    plan: MatrixPlan

    def table_factors(self) -> tuple[Sequence[Tensor], Tensor]:
        """The diagonal blocks of A (V, K), and B (K, D), gates included; differentiable."""


@runtime_checkable
class SharedInput(Protocol):
    """A layer that can make its first product together with other layers of the same input.

    Called without an input it returns its `sides`.
    """

    bias: Tensor | None

    def shares_input(self, tokens: int, dtype: torch.dtype) -> bool:
        """Whether sharing pays for `tokens` tokens that are multiplied in `dtype`."""

    def sides(self) -> tuple[Tensor, Tensor]:
        """The first factor (N, K), to be joined with those of other layers, and the second factor (K, M)."""


@runtime_checkable
class Gated(Protocol):
    """A layer with rank gates."""

    plan: Resizable

    @property
    def gates(self) -> list[nn.Parameter]:
        """One vector (r_k,) for each inner bond, in order."""


def plan_of(layer: nn.Module) -> MatrixPlan | None:
    """The plan of a layer that stores its weight in another format than dense; None of any other module."""
    plan = getattr(layer, "plan", None)
    return plan if isinstance(plan, MatrixPlan) else None


def logits_factors(hidden: Tensor, embedding: nn.Module) -> tuple[Tensor, Weights]:
    """x (…, K) and the weight W (V, K) whose `block_logits` are `hidden` (…, D) times the transposed embedding.

    K is D unless the table is stored as two factors: then the table itself is never computed. Differentiable.
    """
    if isinstance(embedding, FactoredTable) and embedding.plan.table_rank is not None:
        blocks, B_KD = embedding.table_factors()
        return F.linear(hidden, B_KD), blocks
    if isinstance(embedding, ToDense):
        return hidden, embedding.to_dense()
    return hidden, embedding.get_parameter("weight")
