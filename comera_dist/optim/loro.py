"""LORO (Mo, Huang and Pan, ICLR 2025): steps of low-rank layers on the manifold of matrices of their rank.

"Parameter and Memory Efficient Pretraining via Low-rank Riemannian Optimization", openreview.net/forum?id=i0zzO7Hslk.
Shapes: a layer of N inputs and M outputs has the weight X·diag(gate)·Yᵀ with X (N, R) and Y (M, R).
"""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, ClassVar

from comera_dist.config.fields import Positive, Section
from comera_dist.config.optim_section import Optim
from comera_dist.optim.base import MEAN, SQUARE, Group, Method, Shape, State
from comera_dist.optim.each_matrix import householder_flops, next_adam_direction

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Settings(Section):
    """Keys of optim.kind = loro. The default is that of the authors' runs."""

    exact_every: Positive = 500
    """Steps between two exact steps, which balance the factors and begin their moments anew."""


class Loro(Method):
    """With Adam's steps D_X and D_Y from the gradients of the factors of W = X·Yᵀ:

    L_X = (I − ½ X(XᵀX)⁻¹Xᵀ)·D_X·(YᵀY)⁻¹ and L_Y = (I − ½ Y(YᵀY)⁻¹Yᵀ)·D_Y·(XᵀX)⁻¹.

    With the gradients in place of Adam's steps, L_X·Yᵀ + X·L_Yᵀ is the gradient of W, projected on the tangent space.
    Approximate step: X ← X − lr·L_X and Y ← Y − lr·L_Y. Exact step, every `exact_every` steps: W becomes the best
    approximation of rank R to W − lr·(L_X·Yᵀ + X·L_Yᵀ), in factors U·√s and V·√s, and Adam's moments become 0.

    Chosen here: the authors' code takes Adam's steps for L_X and L_Y between exact steps, scaled by R / N, and projects
    them only at exact ones. With the formula above both steps agree to first order. Weight decay shrinks W by
    1 − lr · weight_decay, also in exact steps. A gate is folded into X and stays 1. Left out: the authors' warm-up of
    the learning rate after each exact step, and the reset of the moments of all other parameters.
    """

    name = "loro"
    roles: ClassVar[Mapping[str, str]] = {"exp_avg": MEAN, "exp_avg_sq": SQUARE}
    takes = ("low_rank",)
    needs_whole = True
    section = Settings

    def __init__(self, config: Optim):
        super().__init__(config)
        self._exact_every: int = config.own("loro", Settings).exact_every
        self.places: dict[nn.Parameter, tuple[str, str]] = {}  # layer, and name in it

    @property
    def nothing_to_update(self) -> str:
        return (
            "optim.kind = loro updates the layers of transformer blocks that are two factors and the model has none; "
            "store some of them as low_rank (e.g. model.format.mlp=low_rank), or set optim.kind=adamw"
        )

    def prepare(self, model: "nn.Module") -> None:
        from comera_dist.optim.factors import low_rank_parameters

        self.places |= low_rank_parameters(model)

    def build(self, groups: list[Group]) -> "Optimizer":
        from comera_dist.optim.riemannian_steps import RiemannianSteps

        return RiemannianSteps(groups, self.config.lr)

    def unit_of(self, parameter: "nn.Parameter") -> Hashable:
        """All parameters of a layer: a step of one depends on the others."""
        return self.places[parameter][0]

    def stand_in(self, whole: "nn.Parameter", parameter: "nn.Parameter") -> None:
        self.places[whole] = self.places[parameter]

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        return super().shapes(shape) if len(shape) > 1 else {}  # nothing of a gate

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        return {"step": step, **super().blank(parameter, step)}

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        return {kind: state[kind] for kind in self.roles if kind in state}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """For a factor: its Gram matrix with the inverse and three products with it, and at exact steps Householder's
        QR of twice the columns, its share of the small matrix, and the new factor."""
        R, L = sorted((rows, columns))
        K = min(2 * R, L)
        exact = householder_flops(L, K) + 2 * L * K * R + 2 * R * K**2
        return matrices * (8 * L * R**2 + 4 * R**3 + exact // self._exact_every)

    def is_exact(self, step: int) -> bool:
        """Whether the run's step number `step`, from 1, is an exact one."""
        return step % self._exact_every == 0

    def direction(self, state: State, gradient: "Tensor") -> "Tensor":
        """Adam's step of a factor, in its shape; its moments take in the gradient. `state["step"]` counts this step."""
        steps = (state["step"] - 1) % self._exact_every + 1
        return next_adam_direction(state["exp_avg"], state["exp_avg_sq"], gradient, self.config, steps)
