"""All rank gates of a model on one flat vector, and the number of parameters that each of them stores.

Shapes: G gates, B bonds, C cores of the adapted layers. All tensors are float64, int64 or bool and on the CPU.

The size of the adapted layers at ranks r is S(r) = Σ_cores r_left · mode · r_right + Σ_bonds r, which counts the gates
too; outer bonds have rank 1. Its relaxation Ŝ replaces r_k by Σ_j |g_kj| (Yang et al. 2024, CoMERA).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from comera_dist.formats.base import Resizable

T = TypeVar("T")


@dataclass(frozen=True)
class GateLayout:
    """The order of gates: by layer as in `shapes`, within a layer by bond 1 … K-1, within a bond by index."""

    shapes: dict[str, Resizable]
    ranks_B: Tensor
    adapted_B: Tensor  # whether the rank of the bond may change
    bond_G: Tensor
    left_C: Tensor  # the bond to the left of a core; number B stands for an outer bond, of rank 1
    right_C: Tensor
    mode_C: Tensor

    @classmethod
    def of(cls, shapes: dict[str, Resizable], patterns: tuple[str, ...] = ("*",)) -> "GateLayout":
        """The layout of the plans `shapes`. Layers whose name matches one of the shell-style `patterns` are adapted.

        A table of a single core has no bonds and is not adapted.
        """
        ranks: list[int] = []
        adapted: list[bool] = []
        cores: list[tuple[int, int, int]] = []
        outer = sum(len(shape.bonds) for shape in shapes.values())
        for name, shape in shapes.items():
            is_adapted = bool(shape.bonds) and any(fnmatchcase(name, pattern) for pattern in patterns)
            bonds = [outer, *range(len(ranks), len(ranks) + len(shape.bonds)), outer]
            if is_adapted:
                cores += zip(bonds[:-1], bonds[1:], shape.core_sizes, strict=True)
            ranks += shape.bonds
            adapted += [is_adapted] * len(shape.bonds)
        ranks_B = torch.tensor(ranks, dtype=torch.int64)
        left_C, right_C, mode_C = torch.tensor(cores, dtype=torch.int64).reshape(-1, 3).unbind(1)
        bond_G = torch.arange(len(ranks)).repeat_interleave(ranks_B)
        return cls(shapes, ranks_B, torch.tensor(adapted, dtype=torch.bool), bond_G, left_C, right_C, mode_C)

    @property
    def num_gates(self) -> int:
        return len(self.bond_G)

    @property
    def adapted_layers(self) -> list[str]:
        return [name for name, is_adapted in self.by_layer(self.adapted_B).items() if any(is_adapted)]

    @property
    def bond_names(self) -> list[tuple[str, int]]:
        """Layer and number (from 1) of each bond."""
        return [(name, k) for name, shape in self.shapes.items() for k in range(1, len(shape.bonds) + 1)]

    def largest_ranks(self, ranks_B: Tensor) -> list[int]:
        """For each bond the rank that the cores on its two sides can fill, the other bonds being `ranks_B`."""
        bonds = self.by_layer(ranks_B)
        return [rank for name, plan in self.shapes.items() for rank in plan.largest_bonds(bonds[name])]

    def room(self, ranks_B: Tensor) -> Tensor:
        """Indices (B,) that each bond can gain before it reaches its largest rank."""
        return (torch.tensor(self.largest_ranks(ranks_B), dtype=torch.int64) - ranks_B).clamp_min(0)

    def sums(self, values_G: Tensor) -> Tensor:
        """Sums over each bond (B,)."""
        return torch.zeros(len(self.ranks_B), dtype=values_G.dtype).index_add_(0, self.bond_G, values_G)

    def size(self, ranks_B: Tensor) -> float:
        """Parameters that the adapted layers store at these ranks, gates included. Ranks may be fractional."""
        ranks = pad(ranks_B.double(), (0, 1), value=1.0)
        cores = (ranks[self.left_C] * self.mode_C * ranks[self.right_C]).sum()
        return float(cores + ranks_B[self.adapted_B].sum())

    def index_cost(self, ranks_B: Tensor) -> Tensor:
        """Parameters (B,) that one more index of a bond stores at these ranks: ∂S/∂r; 0 where ranks do not adapt."""
        ranks = pad(ranks_B.double(), (0, 1), value=1.0)
        cost = torch.zeros(len(ranks), dtype=torch.float64)
        cost.index_add_(0, self.left_C, self.mode_C * ranks[self.right_C])
        cost.index_add_(0, self.right_C, self.mode_C * ranks[self.left_C])
        return cost[:-1] + self.adapted_B

    def effective_ranks(self, importance_G: Tensor) -> Tensor:
        """exp of the entropy of each bond's importance (B,): Roy and Vetterli, The effective rank, 2007."""
        # The smallest normal float64 avoids 0/0 in a bond without importance.
        total_B = self.sums(importance_G).clamp_min(torch.finfo(torch.float64).tiny)
        share_G = importance_G / total_B[self.bond_G]
        return self.sums(-torch.xlogy(share_G, share_G)).exp()

    def after_cut(self, cut_G: Tensor) -> Tensor:
        """Ranks (B,) without the indices marked in `cut_G`; a layer that loses all of a bond loses all its bonds."""
        ranks_B = self.ranks_B - self.sums(cut_G.long())
        for bonds in torch.split(ranks_B, [len(shape.bonds) for shape in self.shapes.values()]):
            if not bonds.all():
                bonds.zero_()
        return ranks_B

    def by_layer(self, values_B: Tensor) -> dict[str, list[Any]]:
        """For each layer the list of its bonds' values, Python numbers of the tensor's type."""
        return self._grouped(values_B.tolist())

    def gates_by_layer(self, values_G: Tensor) -> dict[str, list[Tensor]]:
        """For each layer one tensor (r_k,) a bond."""
        return self._grouped(torch.split(values_G, self.ranks_B.tolist()))

    def _grouped(self, parts: Iterable[T]) -> dict[str, list[T]]:
        remaining = iter(parts)
        return {name: list(islice(remaining, len(shape.bonds))) for name, shape in self.shapes.items()}
