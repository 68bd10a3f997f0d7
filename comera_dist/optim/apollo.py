"""APOLLO and APOLLO-Mini (Zhu et al., MLSys 2025, arXiv 2412.05270): gradients, scaled as Adam scales a random sketch.

Shapes: a matrix, its gradient G and its update are (S, L), S ≤ L. R is the rank of the projection.
"""

from math import sqrt
from typing import TYPE_CHECKING, ClassVar

from comera_dist.config.fields import Positive, PositiveFloat, Section
from comera_dist.optim.adam_scaling import adam_step, limit_growth, norm_ratios
from comera_dist.optim.base import Shape, State
from comera_dist.optim.draws import normals
from comera_dist.optim.projected import Projected, projected_shapes, projection_flops

if TYPE_CHECKING:
    from torch import Tensor, nn


class Settings(Section):
    """Keys of optim.kind = apollo. The defaults are the authors' for 1B and 7B parameters."""

    rank: Positive = 256
    """Rank that gradients are projected to."""
    update_every: Positive = 200
    """Steps between two draws of the projection."""
    scale: PositiveFloat = 1.0
    """Factor α of the update."""


class MiniSettings(Section):
    """Keys of optim.kind = apollo_mini. The defaults are the paper's."""

    rank: ClassVar[int] = 1
    update_every: Positive = 200
    """Steps between two draws of the projection."""
    scale: PositiveFloat = sqrt(128)
    """Factor α of the update; the default is √128."""


class Apollo(Projected):
    """α · G, each column times ‖N‖ / ‖P G‖ of that column, behind the norm-growth limiter.

    P (R, S) has the distribution N(0, 1/R) and is drawn anew every `update_every` steps. It is not stored but drawn at
    every step. N (R, L) is Adam's step of P G. This is Algorithm 1 of the paper. Its variant with singular vectors in
    place of random ones, and the quantized weights of its appendix, are left out.
    """

    name = "apollo"
    section: ClassVar[type[Settings | MiniSettings]] = Settings
    _settings: Settings | MiniSettings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        moments, _ = projected_shapes(shape, self._settings.rank)
        return {"exp_avg": moments, "exp_avg_sq": moments, "limited_norm": ()}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        return projection_flops(1, matrices, rows, columns, self._settings.rank)

    def update_SL(self, matrix: "nn.Parameter", state: State, gradient_SL: "Tensor") -> "Tensor":
        projected_RL = self.projection(matrix, state, len(gradient_SL)) @ gradient_SL
        ratios = self._ratios(adam_step(state, projected_RL, self.config), projected_RL)
        return limit_growth(self._settings.scale * ratios * gradient_SL, state["limited_norm"])

    def projection(self, matrix: "nn.Parameter", state: State, shorter: int) -> "Tensor":
        """P (R, S) of this step."""
        R, draw = len(state["exp_avg"]), (state["step"] - 1) // self._settings.update_every
        return normals(f"{self.name}/{self.layer_of(matrix)}/{draw}", (R, shorter), matrix.device) / sqrt(R)

    def _ratios(self, adam_RL: "Tensor", projected_RL: "Tensor") -> "Tensor":
        return norm_ratios(adam_RL, projected_RL, self.config.eps)


class ApolloMini(Apollo):
    """APOLLO of rank 1, with one ratio ‖N‖ / ‖P G‖ of the whole matrix in place of one for each column."""

    name = "apollo_mini"
    section = MiniSettings

    def _ratios(self, adam_RL: "Tensor", projected_RL: "Tensor") -> "Tensor":
        ratio: Tensor = adam_RL.norm() / (projected_RL.norm() + self.config.eps)
        return ratio
