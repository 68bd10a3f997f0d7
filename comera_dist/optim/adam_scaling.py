"""Scales gradients as Adam scales their projection. Fira and APOLLO share these three steps.

Shapes: a gradient is seen as (S, L), S ≤ L, and its projection is (R, L).
"""

from math import sqrt
from typing import TYPE_CHECKING

from comera_dist.config.optim_section import Optim
from comera_dist.optim.base import State

if TYPE_CHECKING:
    from torch import Tensor

GROWTH = 1.01  # γ: how much an update's norm may grow in a step; Chen et al. 2024 and Zhu et al. 2024 use it everywhere
TINY = 1e-30  # keeps the norm of an update of zeros from dividing


def adam_step(state: State, gradient_RL: "Tensor", config: Optim) -> "Tensor":
    """√(1 − β₂ᵗ) / (1 − β₁ᵗ) · M / (√V + ε) at step t, after the moments M and V of `state` took in the gradient."""
    (beta1, beta2), step = config.betas, state["step"]
    mean_RL: Tensor = state["exp_avg"].lerp_(gradient_RL, 1 - beta1)
    square_RL: Tensor = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient_RL, gradient_RL, value=1 - beta2)
    correction = sqrt(1 - beta2**step) / (1 - beta1**step)
    adam_RL: Tensor = correction * mean_RL / (square_RL.sqrt() + config.eps)
    return adam_RL


def norm_ratios(adam_RL: "Tensor", gradient_RL: "Tensor", eps: float) -> "Tensor":
    """‖Adam's step‖ / (‖gradient‖ + ε) of each column: (L,)."""
    ratios_L: Tensor = adam_RL.norm(dim=0) / (gradient_RL.norm(dim=0) + eps)
    return ratios_L


def limit_growth(update_SL: "Tensor", last_norm: "Tensor") -> "Tensor":
    """The update, shrunk to γ · `last_norm` if its norm is larger: the norm-growth limiter of Chen et al. 2024.

    `last_norm` (0-dimensional) becomes the norm of the result. If it is 0, nothing is limited: there is no last step,
    or its gradient was 0. (A limit of γ · ε, as in the paper, would stop a matrix whose first gradients are 0.)
    """
    norm = update_SL.norm()
    reached = norm.minimum(norm.where(last_norm == 0, GROWTH * last_norm))
    last_norm.copy_(reached)
    limited_SL: Tensor = update_SL * (reached / norm.clamp_min(TINY))
    return limited_SL
