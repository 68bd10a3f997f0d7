"""GUM, "GaLore unbiased with Muon" (Pan et al. 2025, arXiv 2510.17802): projected Muon whose mean gradient is G.

Shapes: a matrix, its gradient G and its update are (S, L), S ≤ L. R is the rank of the projection.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from comera_dist.config.fields import Number, Positive, Section
from comera_dist.config.optim_section import Decay
from comera_dist.optim.base import Shape, State, newton_schulz_flops
from comera_dist.optim.draws import uniform
from comera_dist.optim.each_matrix import muon_scale
from comera_dist.optim.projected import Projected, is_first_of_period, leading_basis, projected_shapes, projection_flops

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_PERIODS = 1000  # of a run, whose state is estimated: with 224 matrices this takes 1.5 s (measured)


class Settings(Section):
    """Keys of optim.kind = gum. The defaults are the authors' for fine-tuning, with two layers of 32 at full rank."""

    rank: Positive = 128
    """Rank that gradients are projected to."""
    update_every: Positive = 200
    """Steps of a period, after which projections are computed anew and matrices sampled anew."""
    full_share: Annotated[float, Number, Field(gt=0.0, lt=1.0)] = 2 / 32
    """Probability that a matrix takes steps of full rank in a period."""
    momentum: Decay = 0.95
    """Decay rate of the sum of gradients."""


class Gum(Projected):
    """In each period of `update_every` steps, Muon with one of two unbiased estimates of G in place of G.

    With the probability q = `full_share` the matrix takes steps of full rank NS(M), M ← β M + (G − P PᵀG) / q (S, L).
    Otherwise its steps are P NS(M), M ← β M + PᵀG / (1 − q) (R, L). P (S, R) has the leading singular vectors of the
    period's first gradient, and NS are Newton–Schulz iterations. These are the paper's formulas. Three choices are
    this project's: M begins at 0 in each period, because the shape or the basis of the old one has ended; updates are
    scaled by 0.2 · √L, with which one of full rank has the root mean square of AdamW's (Liu et al. 2025); a matrix with
    S ≤ `rank` is not sampled, because its projection loses nothing.
    """

    name = "gum"
    section = Settings
    _settings: Settings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        """Those of a matrix that takes steps of low rank."""
        moments, basis = projected_shapes(shape, self._settings.rank)
        return {"momentum_buffer": moments, "projection": basis}

    def shapes_after(self, step: int, parameter: "Tensor", shape: Shape) -> dict[str, Shape]:
        return self._shapes_in(self._period(step), self.layer_of(parameter), shape)

    def numbers_in(self, steps: int, shapes: Mapping[str, Shape]) -> Iterator[dict[str, int]]:
        for period in islice(range(self._period(steps) + 1), MOST_PERIODS):
            kept = {layer: self._shapes_in(period, layer, shape) for layer, shape in shapes.items()}
            yield {layer: sum(map(prod, found.values())) for layer, found in kept.items()}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """The mean of both kinds of steps."""
        q, (R, L) = self._settings.full_share, projected_shapes((rows, columns), self._settings.rank)[0]
        full, low = newton_schulz_flops(matrices, rows, columns), newton_schulz_flops(matrices, R, L)
        return projection_flops(2, matrices, rows, columns, R) + round(q * full + (1 - q) * low)

    def update_SL(self, matrix: "nn.Parameter", state: State, gradient_SL: "Tensor") -> "Tensor":
        from comera_dist.optim.spectral_descent import newton_schulz

        if is_first_of_period(state, self._settings.update_every):
            state |= self.blank(matrix, state["step"])
            state["projection"].copy_(leading_basis(gradient_SL, state["projection"].shape[1]))
        is_full = self._is_full(self._period(state["step"]), self.layer_of(matrix), tuple(matrix.shape))
        P_SR, momentum = state["projection"], state["momentum_buffer"]
        momentum.mul_(self._settings.momentum).add_(self.estimated(gradient_SL, P_SR, is_full))
        direction = newton_schulz(momentum[None])[0]
        update_SL: Tensor = muon_scale(*matrix.shape) * (direction if is_full else P_SR @ direction)
        return update_SL

    def estimated(self, gradient_SL: "Tensor", P_SR: "Tensor", is_full: bool) -> "Tensor":
        """Estimate of the gradient by a sampled matrix (S, L), or by another one in the coordinates of P (R, L)."""
        q, (S, R) = self._settings.full_share, P_SR.shape
        projected_RL = P_SR.mT @ gradient_SL
        if is_full:
            return (gradient_SL - P_SR @ projected_RL) / q
        return projected_RL / (1 - q if R < S else 1)

    def _period(self, step: int) -> int:
        """The period of step `step`, counted from 0; step 0 is before the first one and belongs to it."""
        return max(0, step - 1) // self._settings.update_every

    def _is_full(self, period: int, layer: str, shape: Shape) -> bool:
        return self._settings.rank < min(shape) and uniform(f"gum/{layer}/{period}") < self._settings.full_share

    def _shapes_in(self, period: int, layer: str, shape: Shape) -> dict[str, Shape]:
        kept = self.shapes(shape)
        S, L = sorted(shape)
        return kept | {"momentum_buffer": (S, L)} if self._is_full(period, layer, shape) else kept
