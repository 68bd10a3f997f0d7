"""The decision of the policy `threshold`: cut indices that have been unimportant for a while, grow bonds that press.

Shapes: G gates, B bonds, as in layout.py; `order` lists numbers of gates.
"""

from bisect import bisect_left
from typing import Any

import torch
from torch import Tensor

from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Carry, Decision, Situation, counts, read_counts
from comera_dist.ranks.threshold import Threshold

# A bond presses against its rank if its least important index has at least this share of the bond's root-mean-square
# importance; 1 would require equal importances. Chosen, not tuned: growth is off by default.
PRESSING = 0.5
# A new index cannot be cut for this many × `patience` syncs. It starts at importance 0, because its gate has no second
# moment yet. Chosen, not tuned.
GRACE = 4


class PatientCuts:
    """The RankPolicy of `keys`.

    `below_G` counts for each index the successive syncs at which it was below the line; it is negative for new indices.
    """

    def __init__(self, keys: Threshold, layout: GateLayout, state: dict[str, Any] | None):
        self._keys = keys
        zeros_G = torch.zeros(layout.num_gates, dtype=torch.int64)
        self.below_G = zeros_G if state is None else read_counts(state["counts"]["below"])

    def decide(self, situation: Situation) -> Decision:
        """Cuts the indices that have been below the line for `patience` syncs, if that saves enough; grows bonds.

        At the deadline neither patience nor a minimal saving is required. Bonds grow only in the early stage.
        """
        layout, keys, is_deadline = situation.layout, self._keys, situation.is_deadline
        is_below = _below(situation, keys.threshold)
        self.below_G = torch.where(is_below | (self.below_G < 0), self.below_G + 1, 0)
        cut_G = _above_floor(situation, is_below if is_deadline else self.below_G >= keys.patience)
        size = layout.size(layout.ranks_B)
        if not is_deadline and size - _size_after(layout, cut_G) < keys.shrink_when * size:
            cut_G = torch.zeros_like(cut_G)
        added_B = torch.zeros_like(layout.ranks_B)
        if keys.grow and situation.budget is None:
            added_B = _growth(situation, layout.after_cut(cut_G), self.below_G != 0, keys.grow)
        return Decision(cut_G, added_B, {"below": int((self.below_G > 0).sum())})

    def resized(self, carry: Carry) -> None:
        """Carries the counts over; new indices get their grace period."""
        self.below_G = carry(self.below_G, -GRACE * self._keys.patience)

    def state(self, layout: GateLayout) -> dict[str, Any]:
        """The counts."""
        return {"counts": {"below": counts(layout, self.below_G)}}


def _below(situation: Situation, threshold: float) -> Tensor:
    """Indices (G,) below the line of the stage.

    In the early stage the line is `threshold`, and the size never falls below the floor; in the late stage as many
    indices are below the line as must go to meet the budget.
    """
    layout, importance_G, may_go_G = situation.layout, situation.importance_G, situation.may_go_G
    is_small_G = importance_G < threshold * _rms(layout, importance_G)[layout.bond_G]
    # A bond without any importance, as after its gates closed, has a line of 0, which nothing is below.
    is_below = may_go_G & (is_small_G | (importance_G == 0))
    if situation.budget is not None:
        return _fewest_to(layout, _cut_order(layout, importance_G, may_go_G, is_below), situation.budget)
    if _size_after(layout, is_below) < situation.floor:
        order = _cut_order(layout, importance_G, is_below, is_below)
        return _fewest_to(layout, order, situation.floor, is_floor=True)
    return is_below


def _above_floor(situation: Situation, ready_G: Tensor) -> Tensor:
    """Indices (G,) to cut so that the size stays at the floor or above it, as far as possible those of `ready_G`.

    If a large last index would lead below the floor, smaller ones go in its place. Only the deadline leads below the
    floor, because it alone may choose the cheapest of all indices.
    """
    layout, importance_G, floor = situation.layout, situation.importance_G, situation.floor
    if _size_after(layout, ready_G) >= floor:
        return ready_G
    candidates_G = situation.may_go_G if situation.is_deadline else ready_G
    order = _cut_order(layout, importance_G, candidates_G, ready_G)
    cut_G = _down_to(layout, order, floor, crosses=situation.is_deadline)
    return _refilled(layout, importance_G, cut_G, floor)


def _growth(situation: Situation, ranks_B: Tensor, is_weak_G: Tensor, most: int) -> Tensor:
    """At most `most` new indices (B,) for each pressing bond without a weak index, within the planned size.

    `ranks_B` are the ranks after the cut, because a bond must not rely on neighbouring indices that go. Bonds are
    served in the order of the layers.
    """
    layout, importance_G = situation.layout, situation.importance_G
    least_B = torch.full(layout.ranks_B.shape, torch.inf, dtype=importance_G.dtype)
    least_B.scatter_reduce_(0, layout.bond_G, importance_G, "amin")
    presses_B = (least_B >= PRESSING * _rms(layout, importance_G)) & (layout.sums(is_weak_G.long()) == 0)
    added_B, room_B = torch.zeros_like(ranks_B), layout.room(ranks_B)
    for bond in (presses_B & layout.adapted_B).nonzero().flatten().tolist():
        added_B[bond] = room_B[bond].clamp_max(most)
        if layout.size(ranks_B + added_B) > situation.planned_size:
            added_B[bond] = 0
    return added_B


def _cut_order(layout: GateLayout, importance_G: Tensor, candidates_G: Tensor, first_G: Tensor) -> Tensor:
    """The candidates in the order in which they are cut: `first_G`, then by importance² per parameter."""
    worth_G = importance_G.square() / layout.index_cost(layout.ranks_B)[layout.bond_G].clamp_min(1.0)
    candidates = candidates_G.nonzero().flatten()
    order = candidates[worth_G[candidates].argsort(stable=True)]
    return order[(~first_G[order]).int().argsort(stable=True)]


def _fewest_to(layout: GateLayout, order: Tensor, budget: float, is_floor: bool = False) -> Tensor:
    """The fewest indices (G,), in order, that bring the size to the budget.

    With `is_floor` the size never drops below `budget`: the index whose cut would do so is kept.
    """

    def size_without(count: int) -> float:
        return _size_after(layout, _marked(layout, order[:count]))

    count = bisect_left(range(len(order)), True, key=lambda count: size_without(count) <= budget)
    if is_floor and size_without(count) < budget:
        count = max(0, count - 1)
    return _marked(layout, order[:count])


def _down_to(layout: GateLayout, order: Tensor, floor: float, crosses: bool) -> Tensor:
    """Indices (G,) whose cut leads to the floor, or `crosses` it by less than the cheapest of them stores.

    They are cut in order, but an index that leads below the floor is passed over for smaller ones. If the floor may be
    crossed, the cheapest remaining index is cut last.
    """
    cut_G = _fewest_to(layout, order, floor, is_floor=True)
    while True:
        ranks_B = layout.after_cut(cut_G)
        excess, cost_B = layout.size(ranks_B) - floor, layout.index_cost(ranks_B)
        left = order[~cut_G[order] & (ranks_B > 1)[layout.bond_G[order]]]
        fitting = left[cost_B[layout.bond_G[left]] <= excess]
        if not len(fitting):
            break
        cut_G[fitting[0]] = True
    if crosses and excess > 0 and len(left):
        cut_G[left[cost_B[layout.bond_G[left]].argmin()]] = True
    return cut_G


def _refilled(layout: GateLayout, importance_G: Tensor, cut_G: Tensor, budget: float) -> Tensor:
    """The cuts (G,) without those that can be undone within the budget, the most important first."""
    while True:
        ranks_B = layout.after_cut(cut_G)
        fits_B = (layout.index_cost(ranks_B) <= budget - layout.size(ranks_B)) & (ranks_B > 0)
        fitting = (cut_G & fits_B[layout.bond_G]).nonzero().flatten()
        if not len(fitting):
            return cut_G
        cut_G[fitting[importance_G[fitting].argmax()]] = False


def _rms(layout: GateLayout, importance_G: Tensor) -> Tensor:
    """Root mean square of the importances of each bond (B,)."""
    return (layout.sums(importance_G.square()) / layout.ranks_B).sqrt()


def _size_after(layout: GateLayout, cut_G: Tensor) -> float:
    return layout.size(layout.after_cut(cut_G))


def _marked(layout: GateLayout, gates: Tensor) -> Tensor:
    return torch.zeros(layout.num_gates, dtype=torch.bool).index_fill_(0, gates, True)
