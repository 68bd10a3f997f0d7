"""The door for rank policies: what a policy is told at a sync, what it answers, and what it keeps.

A policy of one's own is one file: a config.policy_section.PolicySection with its keys, whose `begin` returns a
RankPolicy. It is added to config.registry.POLICIES before the configuration is read.

Shapes: G gates, B bonds, as in layout.py. Tensors are float64, int64 or bool and on the CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from comera_dist.ranks.layout import GateLayout

Carry = Callable[[Tensor, float], Tensor]  # (values_G, new) → values of the gates after a cut, `new` for added ones
Counts = dict[str, list[list[int]]]  # one number a gate: by layer, for each of its bonds


@dataclass(frozen=True)
class Situation:
    """The state of a run at a sync, alike on all processes.

    `may_go_G` marks the indices that `ranks.layers`, `ranks.min_rank` and `ranks.removable` let go. Sizes are those of
    GateLayout.size: `budget` is the size allowed now (None in the early stage), `floor` the target (0 where it is not
    known yet), `planned_size` the size at the start of the run. At the deadline the size must meet the budget.
    """

    layout: GateLayout
    step: int
    gates_G: Tensor
    second_moment_G: Tensor  # Adam's running mean of (∂L/∂g)²
    importance_G: Tensor
    may_go_G: Tensor
    budget: float | None = None
    floor: float = 0.0
    planned_size: float = 0.0
    is_deadline: bool = False


@dataclass(frozen=True)
class Decision:
    """`cut_G` marks the indices that go, `added_B` counts new ones; `figures` join the sync's record in ranks.jsonl."""

    cut_G: Tensor
    added_B: Tensor
    figures: dict[str, float] = field(default_factory=dict)


class RankPolicy(Protocol):
    """Decides at every sync, and keeps counters from one sync to the next.

    All processes must decide the same: from the situation and the counters alone, with no clock and no random numbers
    but those that `Situation.step` seeds. They compare `state` and decision at every sync.
    """

    def decide(self, situation: Situation) -> Decision:
        """What changes; the caller keeps indices that may not go and stops growth that cores cannot fill."""

    def resized(self, carry: Carry) -> None:
        """Called after every sync: brings numbers of gates to the new ranks."""

    def state(self, layout: GateLayout) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON.

        Under "counts" it holds `counts(layout, …)` by name, if anything: their sizes are checked when it is read.
        """


def importance(gates_G: Tensor, second_moment_G: Tensor) -> Tensor:
    """|g|·√E[(∂L/∂g)²], the square root of the empirical Fisher estimate of the loss that an index saves.

    Theis et al. 2018, arXiv 1801.05787. Rescaling the cores against their gates does not change it.
    """
    return gates_G.abs() * second_moment_G.sqrt()


def counts(layout: GateLayout, counts_G: Tensor) -> Counts:
    """A counter of each gate as JSON."""
    return {name: [bond.tolist() for bond in bonds] for name, bonds in layout.gates_by_layer(counts_G).items()}


def read_counts(saved: Counts) -> Tensor:
    """The counters (G,) of which `counts` made JSON."""
    return torch.tensor([count for bonds in saved.values() for bond in bonds for count in bond], dtype=torch.int64)
