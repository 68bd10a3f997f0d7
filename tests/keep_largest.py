"""A rank policy from outside the package: every bond loses its weakest old index at each sync until `keep` are left.

POLICIES.add("keep_largest", KeepLargest) makes it known.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from comera_dist.config.fields import NonNegative, Positive
from comera_dist.config.policy_section import PolicySection
from comera_dist.config.tree import Config
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Carry, Decision, Situation, counts, read_counts


class KeepLargest(PolicySection):
    kind: Literal["keep_largest"] = "keep_largest"
    keep: Positive = 3
    wait: NonNegative = 1  # syncs that an index has seen before it may go

    def begin(self, layout: GateLayout, state: dict[str, Any] | None) -> "_Largest":
        new_G = torch.zeros(layout.num_gates, dtype=torch.int64)
        return _Largest(self, new_G if state is None else read_counts(state["counts"]["age"]))

    def problems(self, config: Config) -> list[str]:
        least = config.ranks.min_rank
        found = (
            f"ranks.policy.keep = {self.keep} is less than ranks.min_rank = {least}; raise the one or lower the other"
        )
        return [found] * (self.keep < least)


class _Largest:
    def __init__(self, keys: KeepLargest, age_G: Tensor):
        self._keys, self._age_G = keys, age_G

    def decide(self, situation: Situation) -> Decision:
        layout = situation.layout
        self._age_G = self._age_G + 1
        cut_G, start = torch.zeros(layout.num_gates, dtype=torch.bool), 0
        for rank in layout.ranks_B.tolist():
            weakest = start + int(situation.importance_G[start : start + rank].argmin())
            cut_G[weakest] = rank > self._keys.keep and self._age_G[weakest] > self._keys.wait
            start += rank
        return Decision(cut_G, torch.zeros_like(layout.ranks_B), {"oldest": int(self._age_G.max())})

    def resized(self, carry: Carry) -> None:
        self._age_G = carry(self._age_G, 0)

    def state(self, layout: GateLayout) -> dict[str, Any]:
        return {"counts": {"age": counts(layout, self._age_G)}}
