"""A dense layer that may be stored as two factors: what each rank is worth, and the layer of a rank.

Shapes: N inputs in n blocks of c, M outputs in m blocks of b; K largest rank of a block.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import torch
from torch import nn

from comera_dist.compress.moments import Moments
from comera_dist.compress.whitening import Whitening
from comera_dist.formats.base import FromDense, MatrixPlan, Resizable, Unfoldings
from comera_dist.formats.capabilities import plan_of


class Factors(Resizable, Unfoldings, FromDense):
    """A plan of two factors with one bond between them."""


def is_factors(plan: MatrixPlan) -> TypeGuard[Factors]:
    """Whether the plan is of two factors with one bond, which can take over a weight."""
    kinds = (Resizable, Unfoldings, FromDense)
    return all(isinstance(plan, kind) for kind in kinds) and len(getattr(plan, "bonds", ())) == 1


@dataclass(frozen=True)
class Candidate:
    """A dense layer with its moments, and its plan at some rank in a format of two factors."""

    layer: nn.Linear
    plan: Factors
    moments: Moments

    @cached_property
    def whitening(self) -> Whitening:
        (n, c, _), (m, _, b) = self.plan.unfoldings.values()
        return Whitening.of(self.moments, (n, c), (m, b))

    @cached_property
    def gains(self) -> list[float]:
        """The squared error that each further rank removes (K), falling; all candidates have one unit."""
        values = torch.linalg.svdvals(self.whitening.blocks(self.layer.weight.detach()))
        gains: list[float] = values.square().sum(dim=(0, 1)).tolist()
        return gains

    @property
    def dense_numbers(self) -> int:
        return self.layer.weight.numel()

    def numbers(self, rank: int) -> int:
        """Stored numbers at a rank, gates included; from the size of the dense weight on the layer stays dense."""
        return min(rank * self._numbers_of_a_rank, self.dense_numbers)

    def built(self, rank: int) -> tuple[MatrixPlan, nn.Module]:
        """Plan and layer of a rank, which may be 0."""
        plan = self.plan.with_bonds([rank])
        if not isinstance(plan, FromDense):
            layer = plan.build(0.0, None, self.layer.bias is not None)
            if self.layer.bias is not None:
                layer.get_parameter("bias").data.copy_(self.layer.bias)
            return plan, layer
        bias = None if self.layer.bias is None else self.layer.bias.detach()
        layer = plan.from_dense(self.whitening.whitened(self.layer.weight.detach()), bias)
        found = plan_of(layer)
        assert isinstance(found, Unfoldings)
        self._unwhiten(layer, found)
        return found, layer

    @torch.no_grad()
    def _unwhiten(self, layer: nn.Module, plan: Unfoldings) -> None:
        (first, first_size), (last, last_size) = plan.unfoldings.items()
        parameters = layer.get_parameter(first), layer.get_parameter(last)
        factors = self.whitening.undo(parameters[0].view(first_size), parameters[1].view(last_size))
        for parameter, factor in zip(parameters, factors, strict=True):
            parameter.copy_(factor.view(parameter.shape))

    @cached_property
    def _numbers_of_a_rank(self) -> int:
        return self.plan.parameters // self.plan.bonds[0]  # of a rank, its gate included
