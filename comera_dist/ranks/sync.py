"""One view of the rank gates on all processes: gathered, compared, written back.

Shapes: G gates, as in layout.py.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from comera_dist.errors import RankDivergence
from comera_dist.ranks.layout import GateLayout
from comera_dist.runtime.processes import Processes


class Gates(Protocol):
    """All gates of a model as flat vectors, float64 on the CPU, whatever holds them."""

    def copy(self) -> Tensor:
        """This process's gates (G)."""

    def shares(self) -> tuple[Tensor, Tensor]:
        """Gates and second moments (G) whose sum over all processes is theirs."""

    def write(self, gates_G: Tensor) -> None:
        """Sets the gates."""

    def press(self, weights_G: Tensor) -> None:
        """Sets the weights that the pressure multiplies."""


@dataclass(frozen=True)
class Gathered:
    """Gates and their second moments (G), alike on all processes; `drift` is the largest difference from them."""

    gates_G: Tensor
    second_moment_G: Tensor
    drift: float


class RankSync:
    """Gathers gates and proves that processes agree; `tolerance` bounds a gate's drift. All calls are collective."""

    def __init__(self, layout: GateLayout, state: Gates, processes: Processes, tolerance: float):
        self._layout, self._state, self._processes, self._tolerance = layout, state, processes, tolerance

    def gather(self) -> Gathered:
        """The mean of all processes' gates, written back to parameters and masters: one all-reduce.

        float64, so that the mean of equal numbers is that number. Raises RankDivergence where a process was farther
        from it than the tolerance.
        """
        shares = self._processes.sum_tensor(torch.stack(self._state.shares()))
        gates_G, second_moment_G = shares[0].float().double(), shares[1]
        deviation_G = (self._state.copy() - gates_G).abs()
        drift = self._processes.max(float(deviation_G.max()) if len(deviation_G) else 0.0)
        if not drift <= self._tolerance:
            self._raise_drift(drift)
        if drift:
            self._state.write(gates_G)
        return Gathered(gates_G, second_moment_G, drift)

    def agree(self, what: dict, marked_G: Tensor) -> None:
        """RankDivergence unless `what` (JSON) and the marked gates are the same on all processes."""
        digest = _digest(json.dumps(what, sort_keys=True).encode() + marked_G.numpy().tobytes())
        if self._processes.spread(digest):
            self._raise_disagreement(what, marked_G)

    def _raise_drift(self, drift: float) -> None:
        copies = torch.stack(self._processes.gather(self._state.copy()))
        deviation = (copies - copies.median(dim=0).values).abs()
        gate = int(deviation.max(dim=0).values.argmax())
        raise RankDivergence(
            f"gate {self._name(gate)} differs by {drift:.3g} between processes (ranks.drift_tolerance = "
            f"{self._tolerance:.3g}): {_values(copies[:, gate])}; check the memory and the network of the "
            f"machine that stands out, and start the same command again to go on from the newest checkpoint"
        )

    def _raise_disagreement(self, what: dict, marked_G: Tensor) -> None:
        records = self._processes.gather((what, marked_G))
        marks = torch.stack([mark.double() for _, mark in records])
        differing = (marks != marks[0]).any(dim=0).nonzero().flatten()
        if len(differing):
            gate = int(differing[0])
            found = f"cutting gate {self._name(gate)} ({_values(marks[:, gate])})"
        else:
            key = next(key for key in what if any(record[key] != records[0][0][key] for record, _ in records))
            values = ", ".join(f"process {i} has {record[key]}" for i, (record, _) in enumerate(records))
            found = f"the objective's {key} ({values})"
        raise RankDivergence(
            f"processes disagree about {found}, expected one decision everywhere; nothing was cut: start "
            f"the same command again, and report it if it happens on sound machines"
        )

    def _name(self, gate: int) -> str:
        bond = int(self._layout.bond_G[gate])
        layer, number = self._layout.bond_names[bond]
        first = int(self._layout.ranks_B[:bond].sum())
        return f"{gate - first} on bond {number} of {layer}"


def _digest(content: bytes) -> Tensor:
    """sha256 in pieces of 32 bits: numbers that float64 holds exactly."""
    digest = hashlib.sha256(content).digest()
    return torch.tensor([int.from_bytes(digest[k : k + 4], "big") for k in range(0, 32, 4)], dtype=torch.float64)


def _values(values: Tensor) -> str:
    return ", ".join(f"process {i} has {value:.6g}" for i, value in enumerate(values.tolist()))
