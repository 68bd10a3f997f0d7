"""Which indices of which bonds are cut or added: pure functions of numbers that every process has alike.

Shapes: G gates, B bonds, as in layout.py. An index is judged by its importance |g|·√E[(∂L/∂g)²], the square root of the
empirical Fisher estimate of what the loss gains from it (Theis et al. 2018). Rescaling the cores against their gates
does not change it. Adam keeps that second moment anyway.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from comera_dist.config.tree import Ranks
from comera_dist.ranks.layout import GateLayout

PRESSING = (
    0.5  # a bond presses against its rank when its least important index has this share of the mean square's root
)
GRACE = 4  # syncs, in patiences, that a new index has to become important


@dataclass(frozen=True)
class Decision:
    """What changes: `cut_G` marks the indices that go, `added_B` counts new ones, `below_G` the syncs of patience."""

    cut_G: Tensor
    added_B: Tensor
    below_G: Tensor


def decide(
    layout: GateLayout,
    importance_G: Tensor,
    below_G: Tensor,
    config: Ranks,
    budget: float | None = None,
    floor: float = 0.0,
    planned_size: float = 0.0,
    is_deadline: bool = False,
) -> Decision:
    """Cuts what has been unimportant for `patience` syncs, once that saves enough; grows bonds that press.

    `below_G` counts the syncs in a row for which an index was below; one sync above the line sets it back. In the early
    stage (`budget` None) the line is `config.threshold` and the size never falls under `floor`; in the late stage as
    many are below as it takes to meet `budget`. Where a large last index would lead below the floor, smaller ones go in
    its place. At the deadline neither patience nor a minimal saving is asked for. Growth belongs to the early stage and
    spends only what cuts have freed of `planned_size`.
    """
    may_go_G = _may_go(layout, importance_G, config)
    is_below = may_go_G & _below_threshold(layout, importance_G, config.threshold)
    if budget is not None:
        is_below = _fewest(layout, importance_G, may_go_G, is_below, budget)
    elif layout.size(layout.after_cut(is_below)) < floor:
        is_below = _fewest(layout, importance_G, is_below, is_below, floor, is_floor=True)
    below_G = torch.where(is_below | (below_G < 0), below_G + 1, 0)
    ready_G = is_below if is_deadline else below_G >= config.patience
    if layout.size(layout.after_cut(ready_G)) < floor:
        ready_G = _down_to(layout, importance_G, may_go_G if is_deadline else ready_G, ready_G, floor)
        ready_G = _refilled(layout, importance_G, ready_G, floor)
    size, size_after = layout.size(layout.ranks_B), layout.size(layout.after_cut(ready_G))
    worth_it = is_deadline or size - size_after >= config.shrink_when * size
    cut_G = ready_G if worth_it else torch.zeros_like(ready_G)
    added_B = torch.zeros_like(layout.ranks_B)
    if config.grow and budget is None:
        ranks_B = layout.after_cut(cut_G)
        added_B = _growth(layout, ranks_B, importance_G, below_G != 0, config.grow, planned_size)
    return Decision(cut_G, added_B, below_G)


def _below_threshold(layout: GateLayout, importance_G: Tensor, threshold: float) -> Tensor:
    """Indices below their share of the bond; all of them where no index of it matters, as after its gates closed."""
    return (importance_G < threshold * _rms(layout, importance_G)[layout.bond_G]) | (importance_G == 0)


def _rms(layout: GateLayout, importance_G: Tensor) -> Tensor:
    return (layout.sums(importance_G.square()) / layout.ranks_B).sqrt()


def _may_go(layout: GateLayout, importance_G: Tensor, config: Ranks) -> Tensor:
    """Indices that are not among the `min_rank` most important of their bond; all of them in a removable layer."""
    by_importance = importance_G.argsort(descending=True, stable=True)
    order = by_importance[layout.bond_G[by_importance].argsort(stable=True)]
    place_G = torch.empty_like(order)
    first_B = layout.ranks_B.cumsum(0) - layout.ranks_B
    place_G[order] = torch.arange(layout.num_gates) - first_B[layout.bond_G[order]]
    removable = [any(fnmatchcase(name, p) for p in config.removable) for name, _ in layout.bond_names]
    spared_B = torch.where(torch.tensor(removable, dtype=torch.bool), 0, config.min_rank)
    return (place_G >= spared_B[layout.bond_G]) & layout.adapted_B[layout.bond_G]


def _fewest(
    layout: GateLayout,
    importance_G: Tensor,
    candidates_G: Tensor,
    first_G: Tensor,
    budget: float,
    is_floor: bool = False,
) -> Tensor:
    """The fewest candidates that bring the size to the budget: `first_G`, then the least importance² a parameter.

    Of a floor they stop short: the index that would lead below it stays.
    """
    order = _order(layout, importance_G, candidates_G, first_G)

    def cut(count: int) -> Tensor:
        return torch.zeros_like(candidates_G).index_fill_(0, order[:count], True)

    fewest, most = 0, len(order)
    while fewest < most:
        middle = (fewest + most) // 2
        if layout.size(layout.after_cut(cut(middle))) <= budget:
            most = middle
        else:
            fewest = middle + 1
    if is_floor and layout.size(layout.after_cut(cut(fewest))) < budget:
        fewest = max(0, fewest - 1)
    return cut(fewest)


def _order(layout: GateLayout, importance_G: Tensor, candidates_G: Tensor, first_G: Tensor) -> Tensor:
    """Candidates in the order in which they go: `first_G`, then the least importance² a parameter."""
    worth_G = importance_G.square() / layout.index_cost(layout.ranks_B)[layout.bond_G].clamp_min(1.0)
    candidates = candidates_G.nonzero().flatten()
    order = candidates[worth_G[candidates].argsort(stable=True)]
    return order[(~first_G[order]).int().argsort(stable=True)]


def _down_to(layout: GateLayout, importance_G: Tensor, candidates_G: Tensor, first_G: Tensor, floor: float) -> Tensor:
    """Candidates whose cut leads to the floor, or below it by less than the cheapest of them stores.

    They go in order, but those that lead below the floor are passed over for smaller ones; the cheapest goes last.
    """
    cut_G = _fewest(layout, importance_G, candidates_G, first_G, floor, is_floor=True)
    order = _order(layout, importance_G, candidates_G, first_G)
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


def _refilled(layout: GateLayout, importance_G: Tensor, cut_G: Tensor, budget: float) -> Tensor:
    """Takes back cuts, the most important first, as long as the size stays within the budget."""
    cut_G = cut_G.clone()
    while True:
        ranks_B = layout.after_cut(cut_G)
        room = budget - layout.size(ranks_B)
        fits_B = (layout.index_cost(ranks_B) <= room) & (ranks_B > 0)
        fitting = (cut_G & fits_B[layout.bond_G]).nonzero().flatten()
        if not len(fitting):
            return cut_G
        cut_G[fitting[importance_G[fitting].argmax()]] = False


def _growth(
    layout: GateLayout, ranks_B: Tensor, importance_G: Tensor, is_weak_G: Tensor, most: int, planned_size: float
) -> Tensor:
    """New indices (B,) for bonds without a weak index, in order of the layers, as far as the planned size reaches.

    `ranks_B` are those after the cut: a bond must not count on indices of its neighbours that go.
    """
    least_B = torch.full(layout.ranks_B.shape, torch.inf, dtype=importance_G.dtype)
    least_B.scatter_reduce_(0, layout.bond_G, importance_G, "amin")
    presses_B = (least_B >= PRESSING * _rms(layout, importance_G)) & (layout.sums(is_weak_G.long()) == 0)
    added_B = torch.zeros_like(ranks_B)
    room_B = (torch.tensor(layout.largest_ranks(ranks_B)) - ranks_B).clamp_min(0)
    for bond in (presses_B & layout.adapted_B).nonzero().flatten().tolist():
        added_B[bond] = room_B[bond].clamp_max(most)
        if layout.size(ranks_B + added_B) > planned_size:
            added_B[bond] = 0
    return added_B
