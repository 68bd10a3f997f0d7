"""Plans of tensor-train weights and what they cost; pure Python, so that a plan exists before any tensor does.

Shapes: N in-features, M out-features, V vocabulary, D width; ranks r_0 … r_K of K cores with r_0 = r_K = 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from comera_dist.errors import ConfigError
from comera_dist.formats.base import (
    FP32,
    Axis,
    Draw,
    FromDense,
    LayerState,
    MatrixPlan,
    Resizable,
    Sizes,
    StepCost,
    Unfoldings,
)
from comera_dist.formats.dense import gathered_bytes
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.tensor_train.contraction_plan import PATHS, contraction_cost
from comera_dist.formats.tensor_train.factorization import factorize
from comera_dist.formats.tensor_train.lookup_plan import lookup_cost, plan_lookup
from comera_dist.formats.tensor_train.merge_order import merge_flops

if TYPE_CHECKING:
    import torch
    from torch import nn

    from comera_dist.formats.tensor_train.embedding import TTMEmbedding
    from comera_dist.formats.tensor_train.linear import TTLinear
    from comera_dist.formats.tensor_train.tensor_train import TensorTrain

Modes = tuple[int, ...]


@dataclass(frozen=True)
class TrainShape(Resizable, Unfoldings, FromDense):
    """Any train: core_k is (r_{k-1}, *core_modes[k-1], r_k), gate_k is (r_k,).

    The product of `in_modes` may exceed the inputs by less than a factor of two, that of `out_modes` the outputs; the
    surplus is sliced away.
    """

    inputs: int
    outputs: int
    in_modes: Modes
    out_modes: Modes
    ranks: Modes
    mode_names: ClassVar[tuple[str, str]]  # of in_modes and out_modes, as plan_tt or plan_ttm calls them

    def __post_init__(self) -> None:
        check_modes(self.mode_names[0], self.in_modes, self.inputs)
        check_modes(self.mode_names[1], self.out_modes, self.outputs)
        cores = len(self.core_modes)
        if len(self.ranks) != cores + 1 or self.ranks[0] != 1 or self.ranks[-1] != 1 or min(self.ranks) < 1:
            raise ConfigError(
                f"ranks {self.ranks} do not fit {cores} cores, expected {cores + 1} positive ranks that start and end "
                "with 1; take the ranks that plan_tt or plan_ttm chooses"
            )

    @property
    @abstractmethod
    def core_modes(self) -> tuple[Modes, ...]:
        """The modes of each core, without its bonds."""

    @property
    @abstractmethod
    def left_cores(self) -> int:
        """Cores to the left of the middle bond."""

    @property
    @abstractmethod
    def module(self) -> type[TensorTrain[Any]]:
        """The class of the module."""

    @property
    def bonds(self) -> Modes:
        return self.ranks[1:-1]

    @property
    def core_shapes(self) -> tuple[Modes, ...]:
        return tuple(
            (left, *modes, right)
            for left, modes, right in zip(self.ranks, self.core_modes, self.ranks[1:], strict=False)
        )

    @property
    def tensors(self) -> dict[str, Sizes]:
        cores = {f"core_{k}": shape for k, shape in enumerate(self.core_shapes, start=1)}
        return cores | {f"gate_{k}": (rank,) for k, rank in enumerate(self.bonds, start=1)}

    @property
    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """New indices are random in the core to their left and zero in the core to their right."""
        last = len(self.core_modes)
        return {
            f"core_{k}": (*[Axis(-1, k, is_drawn=True)] * (k < last), *[Axis(0, k - 1)] * (k > 1))
            for k in range(1, last + 1)
        }

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        """Cores (r, modes, r') left of the middle bond as (r·modes) x r', right of it as r x (modes·r')."""
        shapes = enumerate(self.core_shapes, start=1)
        return {
            f"core_{k}": (1, prod(shape[:-1]), shape[-1]) if k <= self.left_cores else (1, shape[0], prod(shape[1:]))
            for k, shape in shapes
        }

    def with_bonds(self, bonds: list[int]) -> MatrixPlan:
        if not all(bonds):
            return RemovedPlan(self.inputs, self.outputs)
        return replace(self, ranks=(1, *bonds, 1))

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        return self.module(self, bias, std, generator, cores=None if generator is not None else ())

    def from_dense(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module:
        """The module that TT-SVD finds; its ranks are smaller where a bond's neighbours cannot fill it."""
        from comera_dist.formats.tensor_train.tt_svd import train_from_dense

        cores, shape = train_from_dense(weight, self)
        layer = self.module(shape, bias is not None, cores=cores)
        if bias is not None:
            layer.get_parameter("bias").data.copy_(bias)
        return layer.to(weight.device)

    def balanced(self, state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
        from comera_dist.formats.tensor_train.canonical import balanced_train

        return balanced_train(state, roles, draw)


class TTShape(TrainShape):
    """A linear layer N → M as a train of in-mode cores followed by out-mode cores (sides may differ in length)."""

    tag = "tensor_train"
    mode_names = ("in_modes", "out_modes")

    @cached_property
    def core_modes(self) -> tuple[Modes, ...]:
        return tuple((mode,) for mode in (*self.in_modes, *self.out_modes))

    @property
    def left_cores(self) -> int:
        return len(self.in_modes)

    @property
    def is_low_rank(self) -> bool:
        return len(self.core_modes) == 2

    @property
    def middle_rank(self) -> int:
        """r_d: the layer is exactly a matrix of this rank."""
        return self.ranks[self.left_cores]

    @property
    def in_ranks(self) -> Modes:
        """Ranks 1 … r_d of the bonds of the in-side."""
        return self.ranks[: self.left_cores + 1]

    @property
    def out_ranks(self) -> Modes:
        """Ranks r_d … 1 of the bonds of the out-side."""
        return self.ranks[self.left_cores :]

    @property
    def flops_per_token(self) -> int:
        """Forward FLOPs of one token through the two merged sides: 2·r_d·(N + M)."""
        return 2 * self.middle_rank * (self.inputs + self.outputs)

    @property
    def merge_flops(self) -> int:
        """FLOPs of merging both sides."""
        return merge_flops(self.in_ranks, self.in_modes) + merge_flops(self.out_ranks, self.out_modes)

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        # The loss is computed from the head's narrow intermediate and its out-side.
        return contraction_cost(self, tokens, device_type, itemsize, ("sides",) if is_head else PATHS)

    @property
    def module(self) -> type[TTLinear]:
        from comera_dist.formats.tensor_train.linear import TTLinear

        return TTLinear

    @property
    def description(self) -> str:
        return f"{'·'.join(map(str, self.in_modes))} | {'·'.join(map(str, self.out_modes))}"


class TTMShape(TrainShape):
    """An embedding table V x D as a train whose cores carry a vocabulary mode (in) and a width mode (out) each."""

    tag = "tensor_train_matrix"
    is_embedding = True
    mode_names = ("vocab_modes", "width_modes")

    def __post_init__(self) -> None:
        if len(self.in_modes) != len(self.out_modes):
            raise ConfigError(
                f"vocab_modes {self.in_modes} and width_modes {self.out_modes} differ in length, expected one of each "
                "for every core; give as many of one as of the other"
            )
        super().__post_init__()

    @cached_property
    def core_modes(self) -> tuple[Modes, ...]:
        return tuple(zip(self.in_modes, self.out_modes, strict=True))

    @cached_property
    def left_cores(self) -> int:
        """Cores of the left half: where the two merged tables hold the fewest numbers (all of them at order 1)."""
        sizes = self.core_sizes

        def numbers(k: int) -> int:
            return (prod(sizes[:k]) + prod(sizes[k:])) * self.ranks[k]

        return min(range(1, len(sizes)), key=numbers, default=1)

    @property
    def table_rank(self) -> int | None:  # type: ignore[override]  # a property instead of an attribute
        """The rank of two plain factors (V, K) and (K, D), if these are narrower than the table."""
        is_plain = len(self.in_modes) == 2 and self.in_modes[1] == self.out_modes[0] == 1
        return self.ranks[1] if is_plain and self.ranks[1] < self.outputs else None

    @property
    def projection(self) -> str | None:  # type: ignore[override]  # a property instead of an attribute
        return None if self.table_rank is None else "core_2"

    @property
    def merge_flops(self) -> int:
        """FLOPs of merging all cores into the whole table."""
        return merge_flops(self.ranks, self.core_sizes)

    @property
    def flops_per_token(self) -> int:
        """Forward FLOPs of one distinct token from two half tables, one row block of each (0 for a plain table)."""
        return 2 * self.ranks[self.left_cores] * prod(self.out_modes) if self.bonds else 0

    def forward_flops(self, tokens: int, device_type: str = "cpu") -> int:
        """FLOPs of looking up `tokens` tokens, as many of them distinct as the table allows."""
        return lookup_cost(self, min(tokens, self.inputs), device_type)[0]

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        moved = gathered_bytes(tokens, self.outputs)
        if not self.bonds:
            return StepCost("lookup", 0, moved)
        rows = min(tokens, self.inputs)
        parts = "two factors"
        if self.table_rank is None:
            cut = plan_lookup(self, rows, device_type)
            parts = "cores " + "+".join(str(stop - first) for first, stop in cut)
        flops, numbers = lookup_cost(self, rows, device_type)
        return StepCost(f"distinct rows, {parts}", 3 * flops, moved + 3 * FP32 * numbers)

    @property
    def module(self) -> type[TTMEmbedding]:
        from comera_dist.formats.tensor_train.embedding import TTMEmbedding

        return TTMEmbedding

    @property
    def description(self) -> str:
        return " ".join(f"{v}×{e}" for v, e in self.core_modes)


def check_modes(name: str, modes: Modes, size: int) -> None:
    """ConfigError unless the modes hold `size` features with less than half of the places empty."""
    if not modes or min(modes) < 1 or not size <= prod(modes) < 2 * size:
        example = factorize(size, max(1, len(modes))) if size >= 1 else "()"
        raise ConfigError(
            f"{name} = {modes} has the product {prod(modes)}, expected positive modes with a product from {size} to "
            f"{2 * size - 1}; take {example}, which is balanced"
        )
