"""All rank gates of a model on one flat vector, and what each of them costs.

Shapes: G gates, B bonds, C cores of the adapted trains. Everything is float64 or int64 and on the CPU.

The size of the adapted trains at ranks r is S(r) = Σ_cores r_left · mode · r_right + Σ_bonds r, which counts the gates
too; outer bonds have rank 1. Its relaxation Ŝ puts Σ_j |g_kj| in the place of r_k (Yang et al. 2024, CoMERA).
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from comera_dist.formats.base import Resizable

Shapes = dict[str, Resizable]


@dataclass(frozen=True)
class GateLayout:
    """`shapes` by layer name give the order: bonds 1 … K-1 of the first train, then of the next."""

    shapes: Shapes
    ranks_B: Tensor
    adapted_B: Tensor  # whether the ranks of the bond may change
    bond_G: Tensor
    left_C: Tensor  # the bond to the left of a core; number B stands for an outer bond
    right_C: Tensor
    mode_C: Tensor

    @classmethod
    def of(cls, shapes: Shapes, patterns: tuple[str, ...] = ("*",)) -> "GateLayout":
        """The layout of `shapes`, in which layers that match one of the shell-style `patterns` are adapted.

        A plain table, a train of one core, has no rank and is not adapted.
        """
        ranks, adapted, cores = [], [], []
        outer = sum(len(shape.bonds) for shape in shapes.values())
        for name, shape in shapes.items():
            is_adapted = bool(shape.bonds) and any(fnmatchcase(name, pattern) for pattern in patterns)
            bonds = [outer, *range(len(ranks), len(ranks) + len(shape.bonds)), outer]
            if is_adapted:
                cores += [(bonds[k], bonds[k + 1], size) for k, size in enumerate(shape.core_sizes)]
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
        is_adapted = self.by_layer(self.adapted_B)
        return [name for name in self.shapes if any(is_adapted[name])]

    @property
    def bond_names(self) -> list[tuple[str, int]]:
        """Layer and number (from 1) of each bond."""
        return [(name, k) for name, shape in self.shapes.items() for k in range(1, len(shape.bonds) + 1)]

    def largest_ranks(self, ranks_B: Tensor) -> list[int]:
        """The rank (B,) that the cores on both sides of a bond can fill beside their other bonds' `ranks_B`."""
        bonds = self.by_layer(ranks_B)
        return [rank for name, plan in self.shapes.items() for rank in plan.largest_bonds(bonds[name])]

    def sums(self, values_G: Tensor) -> Tensor:
        """Sums over each bond (B,)."""
        return torch.zeros(len(self.ranks_B), dtype=values_G.dtype).index_add_(0, self.bond_G, values_G)

    def size(self, ranks_B: Tensor) -> float:
        """Parameters stored in the adapted trains at these (also fractional) ranks, gates included."""
        ranks = _with_outer(ranks_B)
        cores = (ranks[self.left_C] * self.mode_C * ranks[self.right_C]).sum()
        return float(cores + ranks_B[self.adapted_B].sum())

    def index_cost(self, ranks_B: Tensor) -> Tensor:
        """Parameters (B,) that one more index of a bond stores at these ranks: ∂S/∂r; 0 where ranks do not adapt."""
        ranks = _with_outer(ranks_B)
        cost = torch.zeros(len(ranks), dtype=torch.float64)
        cost.index_add_(0, self.left_C, self.mode_C * ranks[self.right_C])
        cost.index_add_(0, self.right_C, self.mode_C * ranks[self.left_C])
        return cost[:-1] + self.adapted_B

    def effective_ranks(self, importance_G: Tensor) -> Tensor:
        """exp of the entropy of each bond's importance (B,): Roy and Vetterli, The effective rank, 2007."""
        share_G = importance_G / self.sums(importance_G).clamp_min(1e-300)[self.bond_G]
        return self.sums(-torch.xlogy(share_G, share_G)).exp()

    def after_cut(self, cut_G: Tensor) -> Tensor:
        """Ranks (B,) without the indices marked in `cut_G`; a layer that loses all of a bond loses all its bonds."""
        ranks_B = self.ranks_B - self.sums(cut_G.long())
        start = 0
        for shape in self.shapes.values():
            bonds = slice(start, start := start + len(shape.bonds))
            if not ranks_B[bonds].all():
                ranks_B[bonds] = 0
        return ranks_B

    def by_layer(self, values_B: Tensor) -> dict[str, list[float]]:
        """A list a layer with the value of each of its bonds."""
        return self._grouped(values_B.tolist())

    def gates_by_layer(self, values_G: Tensor) -> dict[str, list[Tensor]]:
        """A list a layer with one tensor (r_k,) a bond."""
        return self._grouped(values_G.split(self.ranks_B.tolist()))

    def _grouped(self, parts) -> dict[str, list]:
        result, start = {}, 0
        for name, shape in self.shapes.items():
            result[name] = list(parts[start : start + len(shape.bonds)])
            start += len(shape.bonds)
        return result


def _with_outer(ranks_B: Tensor) -> Tensor:
    return torch.cat((ranks_B.to(torch.float64), torch.ones(1, dtype=torch.float64)))
