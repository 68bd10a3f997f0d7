"""Which of the indices that may go are cut to bring the size to a budget: pure functions for any policy.

Sizes are those of GateLayout.size. Shapes: G gates, B bonds, as in layout.py; `order` lists numbers of gates.
"""

import torch
from torch import Tensor

from comera_dist.ranks.layout import GateLayout


def cut_order(layout: GateLayout, importance_G: Tensor, candidates_G: Tensor, first_G: Tensor) -> Tensor:
    """The candidates in the order in which they go: `first_G`, then the least importance² a parameter."""
    worth_G = importance_G.square() / layout.index_cost(layout.ranks_B)[layout.bond_G].clamp_min(1.0)
    candidates = candidates_G.nonzero().flatten()
    order = candidates[worth_G[candidates].argsort(stable=True)]
    return order[(~first_G[order]).int().argsort(stable=True)]


def fewest_to(layout: GateLayout, order: Tensor, budget: float, is_floor: bool = False) -> Tensor:
    """The fewest indices (G,), in order, that bring the size to the budget.

    With `is_floor` the size never drops below `budget`: the index whose cut would do so is kept.
    """
    least, most = 0, len(order)
    while least < most:
        middle = (least + most) // 2
        if layout.size(layout.after_cut(_marked(layout, order[:middle]))) <= budget:
            most = middle
        else:
            least = middle + 1
    if is_floor and layout.size(layout.after_cut(_marked(layout, order[:least]))) < budget:
        least = max(0, least - 1)
    return _marked(layout, order[:least])


def down_to(layout: GateLayout, order: Tensor, floor: float) -> Tensor:
    """Indices (G,) whose cut leads to the floor, or below it by less than the cheapest of them stores.

    They go in order, but those that lead below the floor are passed over for smaller ones; the cheapest goes last.
    """
    cut_G = fewest_to(layout, order, floor, is_floor=True)
    while True:
        ranks_B = layout.after_cut(cut_G)
        room, cost_B = layout.size(ranks_B) - floor, layout.index_cost(ranks_B)
        left = order[~cut_G[order] & (ranks_B > 1)[layout.bond_G[order]]]
        fitting = left[cost_B[layout.bond_G[left]] <= room]
        if not len(fitting):
            break
        cut_G[fitting[0]] = True
    if room > 0 and len(left):
        cut_G[left[cost_B[layout.bond_G[left]].argmin()]] = True
    return cut_G


def refilled(layout: GateLayout, importance_G: Tensor, cut_G: Tensor, budget: float) -> Tensor:
    """The cuts (G,) without those that can be taken back within the budget, the most important first."""
    cut_G = cut_G.clone()
    while True:
        ranks_B = layout.after_cut(cut_G)
        room = budget - layout.size(ranks_B)
        fits_B = (layout.index_cost(ranks_B) <= room) & (ranks_B > 0)
        fitting = (cut_G & fits_B[layout.bond_G]).nonzero().flatten()
        if not len(fitting):
            return cut_G
        cut_G[fitting[importance_G[fitting].argmax()]] = False


def _marked(layout: GateLayout, gates: Tensor) -> Tensor:
    return torch.zeros(layout.num_gates, dtype=torch.bool).index_fill_(0, gates, True)
