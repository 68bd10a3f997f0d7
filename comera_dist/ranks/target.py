"""The size that a run goes for: whether it can be met, and how a run ended against it.

Sizes are parameters stored in the adapted layers, gates included.
"""

import torch

from comera_dist.config.tree import Ranks
from comera_dist.errors import ConfigError
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import least_ranks
from comera_dist.ranks.objective import Objective

# Of the target size, within which it counts as reached. Chosen, not tuned: the worst of 40 random cases with the shapes
# of the quickstart ended 0.02% below its target, and a single index of a large layer can hold 2%.
TOLERANCE = 0.02


def goal_of(ranks: Ranks, size: float, dense: int, params: int) -> float | None:
    """The target size; None without a target, and for a fraction of a size that is not known yet.

    The adapted layers are planned with `size` parameters in place of `dense`, the whole model with `params`.
    """
    if ranks.target_compression is not None:
        return dense / ranks.target_compression
    if ranks.target_params is not None:
        return ranks.target_params - (params - size)
    return None


def check_goal(ranks: Ranks, layout: GateLayout, goal: float | None) -> None:
    """ConfigError for a goal that no ranks within the limits meet."""
    if goal is None:
        return
    least_B = layout.ranks_B.minimum(least_ranks(layout, ranks))
    least, planned = layout.size(torch.where(layout.adapted_B, least_B, layout.ranks_B)), layout.size(layout.ranks_B)
    if not least <= goal < planned:
        raise ConfigError(
            f"ranks.{ranks.target} = {getattr(ranks, ranks.target)} asks for {goal:,.0f} parameters in the adapted "
            f"layers, which are planned with {planned:,.0f} and hold {least:,.0f} at "
            f"ranks.min_rank = {ranks.min_rank}; name a target between the two"
        )


def verdict(ranks: Ranks, goal: float | None, objective: Objective) -> str | None:
    """How a run met its target at its end, in a sentence; None for a run without one."""
    if ranks.target is None:
        return None
    if goal is None:
        return f"The late stage, and with it ranks.{ranks.target}, was not reached."
    size = objective.size
    found = f"{size:,.0f} parameters in the adapted layers, target {goal:,.0f} ({size / goal - 1:+.1%})"
    if abs(size / goal - 1) <= TOLERANCE:
        return f"Target reached: {found}."
    return f"Target missed: {found}, because {_reason(ranks, goal, objective)}."


def _reason(ranks: Ranks, goal: float, objective: Objective) -> str:
    if bool(objective.loss_leads):
        return f"the loss stayed above ranks.loss_bound = {ranks.loss_bound}"
    policy = f"ranks.policy = {ranks.policy.kind}"
    if objective.size < goal:
        return f"the indices that {policy} cut last hold more than the tolerance of {TOLERANCE:.0%}"
    return f"{policy} cut no further index at ranks.min_rank = {ranks.min_rank}, or the run ended too early"
