"""How the policy `threshold` decides: what has been unimportant for a while goes, bonds that press grow.

Shapes: G gates, B bonds, as in layout.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comera_dist.ranks.cuts import cut_order, down_to, fewest_to, refilled
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Carry, Decision, Situation, counts, read_counts
from comera_dist.ranks.threshold import Threshold

# A bond presses against its rank when its least important index has this share of the bond's root-mean-square
# importance; 1 would ask for equal importances. Chosen, not tuned: growth is off by default.
PRESSING = 0.5
# Times `patience`: the syncs that a new index has to become important. It begins at importance 0, because its gate has
# no second moment yet. Chosen, not tuned.
GRACE = 4


class PatientCuts:
    """The RankPolicy of `keys`: counts for each gate the syncs in a row for which it was below the line."""

    def __init__(self, keys: Threshold, layout: GateLayout, state: dict[str, Any] | None):
        self._keys = keys
        zeros_G = torch.zeros(layout.num_gates, dtype=torch.int64)
        self._below_G = zeros_G if state is None else read_counts(state["counts"]["below"])

    def decide(self, situation: Situation) -> Decision:
        """Remembers the new counts."""
        outcome = decide(situation, self._below_G, self._keys)
        self._below_G = outcome.below_G
        return Decision(outcome.cut_G, outcome.added_B, {"below": int((outcome.below_G > 0).sum())})

    def resized(self, carry: Carry) -> None:
        """New indices have a grace."""
        self._below_G = carry(self._below_G, -GRACE * self._keys.patience)

    def state(self, layout: GateLayout) -> dict[str, Any]:
        """The counts."""
        return {"counts": {"below": counts(layout, self._below_G)}}


@dataclass(frozen=True)
class Outcome:
    """`cut_G` marks the indices that go, `added_B` counts new ones, `below_G` counts the syncs below the line."""

    cut_G: Tensor
    added_B: Tensor
    below_G: Tensor


def decide(situation: Situation, below_G: Tensor, keys: Threshold) -> Outcome:
    """Cuts what has been unimportant for `patience` syncs, once that saves enough; grows bonds that press.

    `below_G` counts the syncs in a row for which an index was below; one sync above the line sets it back. In the early
    stage the line is `keys.threshold` and the size never falls under the floor; in the late stage as many are below as
    it takes to meet the budget. Where a large last index would lead below the floor, smaller ones go in its place. At
    the deadline neither patience nor a minimal saving is asked for. Growth belongs to the early stage and spends only
    what cuts have freed of the planned size.
    """
    layout, is_below = situation.layout, _below(situation, keys.threshold)
    below_G = torch.where(is_below | (below_G < 0), below_G + 1, 0)
    ready_G = _above_floor(situation, is_below if situation.is_deadline else below_G >= keys.patience)
    size, size_after = layout.size(layout.ranks_B), layout.size(layout.after_cut(ready_G))
    worth_it = situation.is_deadline or size - size_after >= keys.shrink_when * size
    cut_G = ready_G if worth_it else torch.zeros_like(ready_G)
    added_B = torch.zeros_like(layout.ranks_B)
    if keys.grow and situation.budget is None:
        added_B = _growth(situation, layout.after_cut(cut_G), below_G != 0, keys.grow)
    return Outcome(cut_G, added_B, below_G)


def _below(situation: Situation, threshold: float) -> Tensor:
    """Indices (G,) below the line of the stage."""
    layout, importance_G, may_go_G = situation.layout, situation.importance_G, situation.may_go_G
    # All indices of a bond of which none matters are below too, as after its gates closed.
    is_small_G = importance_G < threshold * _rms(layout, importance_G)[layout.bond_G]
    is_below = may_go_G & (is_small_G | (importance_G == 0))
    if situation.budget is not None:
        return fewest_to(layout, cut_order(layout, importance_G, may_go_G, is_below), situation.budget)
    if layout.size(layout.after_cut(is_below)) < situation.floor:
        order = cut_order(layout, importance_G, is_below, is_below)
        return fewest_to(layout, order, situation.floor, is_floor=True)
    return is_below


def _above_floor(situation: Situation, ready_G: Tensor) -> Tensor:
    """The indices of `ready_G`, or others in the place of some, that leave the size at the floor or above it."""
    layout, importance_G, floor = situation.layout, situation.importance_G, situation.floor
    if layout.size(layout.after_cut(ready_G)) >= floor:
        return ready_G
    candidates_G = situation.may_go_G if situation.is_deadline else ready_G
    order = cut_order(layout, importance_G, candidates_G, ready_G)
    return refilled(layout, importance_G, down_to(layout, order, floor), floor)


def _rms(layout: GateLayout, importance_G: Tensor) -> Tensor:
    """Root mean square of the importances of each bond (B,)."""
    return (layout.sums(importance_G.square()) / layout.ranks_B).sqrt()


def _growth(situation: Situation, ranks_B: Tensor, is_weak_G: Tensor, most: int) -> Tensor:
    """New indices (B,) for bonds without a weak index, in order of the layers, as far as the planned size reaches.

    `ranks_B` are those after the cut: a bond must not count on indices of its neighbours that go.
    """
    layout, importance_G = situation.layout, situation.importance_G
    least_B = torch.full(layout.ranks_B.shape, torch.inf, dtype=importance_G.dtype)
    least_B.scatter_reduce_(0, layout.bond_G, importance_G, "amin")
    presses_B = (least_B >= PRESSING * _rms(layout, importance_G)) & (layout.sums(is_weak_G.long()) == 0)
    added_B = torch.zeros_like(ranks_B)
    room_B = (torch.tensor(layout.largest_ranks(ranks_B)) - ranks_B).clamp_min(0)
    for bond in (presses_B & layout.adapted_B).nonzero().flatten().tolist():
        added_B[bond] = room_B[bond].clamp_max(most)
        if layout.size(ranks_B + added_B) > situation.planned_size:
            added_B[bond] = 0
    return added_B
