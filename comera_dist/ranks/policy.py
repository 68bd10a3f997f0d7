"""The interface of rank policies: what a policy is told at a sync, what it answers, and what it keeps.

A policy is one file: a config.policy_section.PolicySection with its keys, whose `begin` returns a RankPolicy. One from
outside of the package is added to config.registry.POLICIES before the configuration is read.

Shapes: G gates, B bonds, as in layout.py. Tensors are float64, int64 or bool and on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from comera_dist.ranks.layout import GateLayout

Carry = Callable[[Tensor, float], Tensor]  # (values_G, new) → values of the gates after a resize, `new` for added ones


@dataclass(frozen=True)
class Situation:
    """The state of a run at a sync, the same on all processes. Sizes are those of GateLayout.size."""

    layout: GateLayout
    step: int
    gates_G: Tensor
    second_moment_G: Tensor  # Adam's running mean of (∂L/∂g)²
    importance_G: Tensor
    may_go_G: Tensor  # indices that `ranks.layers`, `ranks.min_rank` and `ranks.removable` allow to cut
    budget: float | None = None  # the size allowed now; None in the early stage
    floor: float = 0.0  # the target size; 0 if it is not known yet
    planned_size: float = 0.0  # the size at the start of the run
    is_deadline: bool = False  # the size must meet the budget at this sync


@dataclass(frozen=True)
class Decision:
    """`cut_G` marks the indices to cut, `added_B` counts new ones; `figures` join the sync's record in ranks.jsonl."""

    cut_G: Tensor
    added_B: Tensor
    figures: dict[str, float] = field(default_factory=dict)


class RankPolicy(Protocol):
    """Decides at every sync, and keeps counters from one sync to the next.

    All processes must decide the same, so a decision may depend on the situation and the counters only: no clock, and
    no random numbers except those seeded by `Situation.step`. Processes compare `state` and decision at every sync.
    """

    def decide(self, situation: Situation) -> Decision:
        """The changes to make. The caller ignores cuts and growth beyond the limits (see limits.py)."""

    def resized(self, carry: Carry) -> None:
        """Brings the counters of gates to the new ranks. Called after every sync."""

    def state(self, layout: GateLayout) -> dict[str, Any]:
        """The counters as JSON for a checkpoint.

        Counters of gates must be `counts(layout, …)` by name under "counts": their sizes are checked when a checkpoint
        is read.
        """


def importance(gates_G: Tensor, second_moment_G: Tensor) -> Tensor:
    """|g|·√E[(∂L/∂g)²], the square root of the empirical Fisher estimate of the loss that an index saves.

    Theis et al. 2018, arXiv 1801.05787. Rescaling the cores against their gates does not change it.
    """
    return gates_G.abs() * second_moment_G.sqrt()


def counts(layout: GateLayout, counts_G: Tensor) -> dict[str, list[list[int]]]:
    """A counter of each gate as JSON: for each layer, the counters of each bond. AssertionError for other numbers."""
    assert not counts_G.is_floating_point(), "counters of gates are integers; keep others under a key of their own"
    return {name: [bond.tolist() for bond in bonds] for name, bonds in layout.gates_by_layer(counts_G).items()}


def read_counts(saved: dict[str, list[list[int]]]) -> Tensor:
    """The counters (G,) that `counts` wrote."""
    return torch.tensor([count for bonds in saved.values() for bond in bonds for count in bond], dtype=torch.int64)
