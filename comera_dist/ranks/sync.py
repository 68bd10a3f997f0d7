"""One view of the rank gates on all processes: gathered, compared, written back.

Shapes: G gates, as in layout.py. All tensors are on the CPU.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from comera_dist.errors import RankDivergence
from comera_dist.ranks.layout import GateLayout
from comera_dist.runtime.processes import Processes


class Gates(Protocol):
    """All gates of a model as flat float64 vectors."""

    def copy(self) -> Tensor:
        """This process's copy of the gates (G,)."""

    def shares(self) -> tuple[Tensor, Tensor]:
        """This process's share of the gates and of their second moments (G,): a sum over processes gives both."""

    def write(self, gates_G: Tensor) -> None:
        """Sets the gates."""

    def press(self, weights_G: Tensor) -> None:
        """Sets the weights of the gates' penalty, which the pressure multiplies."""


@dataclass(frozen=True)
class RankSync:
    """Gathers gates and proves that processes agree. All methods are collective."""

    layout: GateLayout
    gates: Gates
    processes: Processes
    tolerance: float  # largest drift of a gate

    def gather(self) -> tuple[Tensor, Tensor, float]:
        """Gates and second moments (G,), the same on all processes, and the largest drift of a copy from the gates.

        The gates are the mean of all processes' copies, by one all-reduce, and are written back where they drifted.
        Raises RankDivergence if a gate is not finite, or a process's copy is further from the mean than the tolerance.
        """
        # In float64 the mean of equal fp32 numbers is exactly that number.
        shares = self.processes.sum_tensor(torch.stack(self.gates.shares()))
        gates_G, second_moment_G = shares[0].float().double(), shares[1]
        if not bool(gates_G.isfinite().all()):
            self._raise_not_finite(gates_G)
        deviation_G = (self.gates.copy() - gates_G).abs()
        drift = self.processes.max(float(deviation_G.max()) if len(deviation_G) else 0.0)
        if not drift <= self.tolerance:
            self._raise_drift(drift)
        if drift:
            self.gates.write(gates_G)
        return gates_G, second_moment_G, drift

    def agree(self, record: dict[str, Any], marked_G: Tensor) -> None:
        """RankDivergence unless `record` (JSON) and the marked gates are the same on all processes."""
        digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode() + marked_G.numpy().tobytes()).digest()
        # Numbers of 32 bits are exact in the float64 of the collective.
        if self.processes.spread(torch.frombuffer(bytearray(digest), dtype=torch.int32).double()):
            self._raise_disagreement(record, marked_G)

    def _raise_not_finite(self, gates_G: Tensor) -> None:
        gate = int((~gates_G.isfinite()).nonzero()[0])
        raise RankDivergence(
            f"gate {self._name(gate)} is {float(gates_G[gate])}, expected a finite number; go back to earlier weights, "
            f"and leave out steps whose loss is not finite, or lower the learning rate"
        )

    def _raise_drift(self, drift: float) -> None:
        copies = torch.stack(self.processes.gather(self.gates.copy()))
        deviation = (copies - copies.median(dim=0).values).abs()
        gate = int(deviation.max(dim=0).values.argmax())
        raise RankDivergence(
            f"gate {self._name(gate)} differs by {drift:.3g} between processes (ranks.drift_tolerance = "
            f"{self.tolerance:.3g}): {_values(copies[:, gate])}; check the memory and the network of the "
            f"machine that stands out, and start the same command again to go on from the newest checkpoint"
        )

    def _raise_disagreement(self, own: dict[str, Any], marked_G: Tensor) -> None:
        records, marks = zip(*self.processes.gather((own, marked_G)), strict=True)
        marks_PG = torch.stack(marks).double()
        differing = (marks_PG != marks_PG[0]).any(dim=0).nonzero().flatten()
        if len(differing):
            gate = int(differing[0])
            found = f"cutting gate {self._name(gate)} ({_values(marks_PG[:, gate])})"
        else:
            key = next(key for key in own if any(record[key] != records[0][key] for record in records))
            values = ", ".join(f"process {i} has {record[key]}" for i, record in enumerate(records))
            found = f"the objective's {key} ({values})"
        raise RankDivergence(
            f"processes disagree about {found}, expected one decision everywhere; nothing was cut: start "
            f"the same command again, and report it if it happens on sound machines"
        )

    def _name(self, gate: int) -> str:
        bond = int(self.layout.bond_G[gate])
        layer, number = self.layout.bond_names[bond]
        return f"{gate - int(self.layout.ranks_B[:bond].sum())} on bond {number} of {layer}"


def _values(values: Tensor) -> str:
    return ", ".join(f"process {i} has {value:.6g}" for i, value in enumerate(values.tolist()))
