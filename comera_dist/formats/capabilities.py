"""Capabilities of modules that store a weight, asked for by type: `isinstance(layer, ToDense)`.

Shapes: N in-features, M out-features, K width of a narrow intermediate; V rows of a table, D its width.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from comera_dist.formats.base import MatrixPlan, Resizable


@runtime_checkable
class ToDense(Protocol):
    """A layer that has a dense equal."""

    def to_dense(self) -> Tensor:
        """The weight (M, N) as nn.Linear stores it, or the table (V, D); differentiable."""


@runtime_checkable
class Factored(Protocol):
    """A linear layer that is a product of two narrow matrices."""

    bias: Tensor | None

    def factors(self) -> tuple[Tensor, Tensor]:
        """U (N, K) and V (K, M), gates included."""


@runtime_checkable
class SharedInput(Protocol):
    """A layer whose first product can be made together with that of other layers which have the same input.

    Called without an input it returns its `sides`.
    """

    bias: Tensor | None

    def shares_input(self, tokens: int, dtype: torch.dtype) -> bool:
        """Whether it pays for so many tokens in this dtype."""

    def sides(self) -> tuple[Tensor, Tensor]:
        """The first factor (N, K), to be joined with others, and the second (K, M)."""


@runtime_checkable
class Gated(Protocol):
    """A layer with rank gates."""

    plan: Resizable

    @property
    def gates(self) -> list[torch.nn.Parameter]:
        """One vector (r_k,) for each inner bond, in order."""


def plan_of(layer: nn.Module) -> MatrixPlan | None:
    """The plan of a layer that stores a weight in another format than dense; None of all other modules."""
    plan = getattr(layer, "plan", None)
    return plan if isinstance(plan, MatrixPlan) else None


def embedding_table(embedding: nn.Module) -> Tensor:
    """All rows (V, D) of an embedding, differentiable."""
    if isinstance(embedding, ToDense):
        return embedding.to_dense()
    table: Tensor = embedding.weight
    return table
