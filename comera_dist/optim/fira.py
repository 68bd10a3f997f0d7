"""Fira (Chen et al., NeurIPS 2025, arXiv 2410.01623): GaLore's step, and a scaled one with the rest of the gradient.

Shapes: a matrix, its gradient G and its update are (S, L), S ≤ L. R is the rank of the projection.
"""

from typing import TYPE_CHECKING

from comera_dist.config.fields import Positive, PositiveFloat, Section
from comera_dist.optim.adam_scaling import adam_step, limit_growth, norm_ratios
from comera_dist.optim.base import Shape, State
from comera_dist.optim.projected import Projected, is_first_of_period, leading_basis, projected_shapes, projection_flops

if TYPE_CHECKING:
    from torch import Tensor, nn


class Settings(Section):
    """Keys of optim.kind = fira. The defaults are those of the authors' script for a LLaMA of 60M parameters."""

    rank: Positive = 128
    """Rank that gradients are projected to."""
    update_every: Positive = 200
    """Steps between two computations of the projection."""
    scale: PositiveFloat = 0.25
    """Factor α of the update; the authors take 0.0625 above 1B parameters."""


class Fira(Projected):
    """α · (P N + S), with N Adam's step of the projected gradient PᵀG (R, L).

    P (S, R) has the leading singular vectors of the gradient of every `update_every`-th step. S (S, L) is the rest
    G − P PᵀG, each column times ‖N‖ / ‖PᵀG‖ of that column, behind the norm-growth limiter. This is Algorithm 1 of the
    paper. Its variant with one ratio for the whole matrix (Fira-matrix) is left out: the paper finds it worse.

    Different in the authors' code (github.com/xichen-fy/Fira, fira_adamw.py): α multiplies what P gives back, so a step
    is α P N + S, and the rest is G − α P PᵀG; the limiter sees N before Adam's correction of its bias.
    """

    name = "fira"
    section = Settings
    _settings: Settings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        moments, basis = projected_shapes(shape, self._settings.rank)
        return {"exp_avg": moments, "exp_avg_sq": moments, "projection": basis, "limited_norm": ()}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        return projection_flops(3, matrices, rows, columns, self._settings.rank)

    def update_SL(self, matrix: "nn.Parameter", state: State, gradient_SL: "Tensor") -> "Tensor":
        P_SR = state["projection"]
        if is_first_of_period(state, self._settings.update_every):
            P_SR.copy_(leading_basis(gradient_SL, P_SR.shape[1]))
        projected_RL = P_SR.mT @ gradient_SL
        adam_RL = adam_step(state, projected_RL, self.config)
        ratios_L = norm_ratios(adam_RL, projected_RL, self.config.eps)
        rest_SL = limit_growth((gradient_SL - P_SR @ projected_RL) * ratios_L, state["limited_norm"])
        update_SL: Tensor = self._settings.scale * (P_SR @ adam_RL + rest_SL)
        return update_SL
