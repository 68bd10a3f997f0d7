"""Rank gates: one fp32 vector per inner bond of a train, multiplied between the two cores that share the bond.

Shapes: r_k the rank of bond k, which joins core k and core k + 1.
"""

import torch
from torch import Tensor


def gate_name(bond: int) -> str:
    """The parameter name of the gates on bond 1 … K-1."""
    return f"gate_{bond}"


def open_gates(bonds: tuple[int, ...], device: torch.device | None, dtype: torch.dtype) -> list[Tensor]:
    """Gates that change nothing: ones."""
    return [torch.ones(rank, device=device, dtype=dtype) for rank in bonds]


def gate_cores(cores: list[Tensor], gates: list[Tensor]) -> list[Tensor]:
    """Cores with every gate multiplied into the core on its left; a last core without a gate stays as it is."""
    return [core * gate for core, gate in zip(cores, gates, strict=False)] + list(cores[len(gates) :])
