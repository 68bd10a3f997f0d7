"""The protocol of a format of weights: its options, its plans of matrices, and optional capabilities.

Shapes: N inputs, M outputs of a matrix (an embedding: rows → width).

A format plans a matrix before any tensor exists, and the plan builds the module. A capability that not every format has
is a type, and callers ask for it with `isinstance`. Formats may be `Tables`; plans may be `FromDense`, `Resizable` and
`Unfoldings`; capabilities.py has the types of modules. This file imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from comera_dist.config.fields import Section
from comera_dist.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from comera_dist.config.tensor_section import Tensor

Sizes = tuple[int, ...]

FP32, BF16 = 4, 2  # bytes of a number
GATE = "gate_"  # the names of all gate parameters begin so: gate_k (r_k,) is multiplied on bond k
MIXTURE = "mixture"  # the name of coefficients of whole matrices, whose sum is a weight


class Product(NamedTuple):
    """A matrix product (m, k) x (k, n)."""

    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def numbers(self) -> int:
        """Numbers of both factors and the result."""
        return self.m * self.k + self.k * self.n + self.m * self.n


@dataclass(frozen=True)
class StepCost:
    """Forward and backward of one layer over all tokens; `path` names the way it is computed."""

    path: str
    flops: int
    bytes_moved: int

    @classmethod
    def of_products(cls, path: str, itemsize: int, *products: Product) -> StepCost:
        """Each product is followed by two of its size in the backward pass; factors and results are moved once."""
        numbers = sum(product.numbers for product in products)
        return cls(path, 3 * sum(product.flops for product in products), 3 * itemsize * numbers)

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(self.path, self.flops + other.flops, self.bytes_moved + other.bytes_moved)


class MatrixPlan(ABC):
    """How one weight matrix is stored. Plans are frozen dataclasses of integers, tuples and strings.

    `tag` names the class in a checkpoint.
    """

    tag: ClassVar[str]
    is_embedding: bool = False
    table_rank: int | None = None  # K of a table that multiplies by factors (V, K) and (K, D), else None
    projection: str | None = None  # name of the parameter (K, D) of such a table
    inputs: int  # N; an embedding's rows
    outputs: int  # M; an embedding's width

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Sizes]:
        """Names and shapes of the parameters, without the bias."""

    @property
    @abstractmethod
    def flops_per_token(self) -> int:
        """Multiply-adds × 2 of one token's forward pass."""

    @abstractmethod
    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        """Cost of a training step over `tokens` tokens, with numbers of `itemsize` bytes.

        With `is_head` the matrix is the head of a vocabulary, whose loss is computed without the whole output.
        """

    @abstractmethod
    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        """The module, on the CPU, with a bias of zeros if `bias` is set.

        Weights are drawn from `generator` with mean square std². Without a generator the caller must load values.
        """

    @property
    def description(self) -> str:
        """Modes, blocks or the like, for a table on the console."""
        return self.tag

    @property
    def num_parameters(self) -> int:
        """Stored numbers without gates and bias."""
        return self.parameters - self.num_gates

    @property
    def num_gates(self) -> int:
        return sum(prod(size) for name, size in self.tensors.items() if name.startswith(GATE))

    @property
    def parameters(self) -> int:
        """Stored numbers, gates included."""
        return sum(map(prod, self.tensors.values()))

    @property
    def cores(self) -> dict[str, Sizes]:
        """Names and shapes of the parameters whose product is the weight, or a part of it; a dense matrix has none."""
        return {}

    @property
    def buffer_bytes(self) -> int:
        """Bytes of tensors that the module holds besides its parameters, whole on every process and never saved."""
        return 0

    @property
    def dense_size(self) -> tuple[int, int]:
        """The shape of the dense weight: (M, N) as nn.Linear stores it, or (V, D) of a table."""
        return (self.inputs, self.outputs) if self.is_embedding else (self.outputs, self.inputs)

    @property
    def dense_parameters(self) -> int:
        return self.inputs * self.outputs

    @property
    def is_oversize(self) -> bool:
        """Whether it stores more numbers than a dense matrix would."""
        return self.parameters > self.dense_parameters

    @property
    def merge_flops(self) -> int:
        """FLOPs that a forward pass spends once, however many tokens it has."""
        return 0

    def forward_flops(self, tokens: int, device_type: str = "cpu") -> int:
        """FLOPs of a forward pass over `tokens` tokens, merging included."""
        return tokens * self.flops_per_token + self.merge_flops

    def to_json(self) -> dict[str, Any]:
        return {"format": self.tag, **asdict(self)}  # type: ignore[call-overload]  # every subclass is a dataclass


@dataclass(frozen=True)
class Axis:
    """Dimension `dim` of a parameter, which bond number `bond` (from 1) indexes.

    A new index gets random numbers if `is_drawn`, else zeros. Exactly one of the parameters at a bond is drawn: then a
    new index leaves the weight as it is, and a gradient reaches both parameters.
    """

    dim: int
    bond: int
    is_drawn: bool = False


# For each parameter of a layer its weight and, by kind, the tensors that an optimizer keeps of it.
LayerState = dict[str, dict[str, "torch.Tensor"]]
Draw = Callable[[str, Any], "torch.Tensor"]  # standard normal numbers for a parameter's name and a shape


class Resizable(MatrixPlan):
    """A plan whose inner bonds can change their rank during a run; gate_k (r_k,) is multiplied on bond k."""

    @property
    def bonds(self) -> Sizes:
        """Ranks r_1 … r_{K-1} of the inner bonds."""
        return tuple(size[0] for name, size in self.tensors.items() if name.startswith(GATE))

    @property
    @abstractmethod
    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """For core k = 1 … K, in order, its axes that belong to bonds; drawn ones first."""

    @property
    def cores(self) -> dict[str, Sizes]:
        return {name: self.tensors[name] for name in self.axes}

    @property
    def core_sizes(self) -> Sizes:
        """Numbers that core k = 1 … K stores for each pair of indices of bonds k - 1 and k; r_0 = r_K = 1."""
        shapes = self.tensors
        return tuple(
            prod(shapes[name]) // prod(shapes[name][axis.dim] for axis in axes) for name, axes in self.axes.items()
        )

    @abstractmethod
    def with_bonds(self, bonds: list[int]) -> MatrixPlan:
        """The same matrix at other ranks of its inner bonds; a RemovedPlan if one of them is 0."""

    def largest_bonds(self, bonds: list[int]) -> list[int]:
        """For each bond the largest rank that its neighbours can fill if the other ranks are `bonds`."""
        ranks, sizes = (1, *bonds, 1), self.core_sizes
        return [min(ranks[k - 1] * sizes[k - 1], sizes[k] * ranks[k + 1]) for k in range(1, len(sizes))]

    def balanced(self, state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
        """The same weight in balanced canonical form with open gates, and its moments in the same gauge.

        `roles` maps each kind of moment to "mean" (of gradients) or "square" (mean of squared gradients). A format
        without a gauge freedom returns the state as it is.
        """
        return state


class Unfoldings(MatrixPlan):
    """A plan whose parameters are batches of matrices, so that a matrix optimizer can step on them.

    In these matrices the weight is a product of linear maps: if all of them are isometries, so is the weight. A core's
    map sums over the rows. Parameters besides these and the gates are added to the product.
    """

    @property
    @abstractmethod
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        """(matrices, rows, columns) of each core; the core reshaped to this size is the batch."""

    @property
    def cores(self) -> dict[str, Sizes]:
        return {name: self.tensors[name] for name in self.unfoldings}

    @property
    def is_low_rank(self) -> bool:
        """Whether the weight is core_1 · diag(gate_1) · core_2, a matrix whose only constraint is its rank."""
        return False


class FromDense(MatrixPlan):
    """A plan whose module can approximate a given dense weight."""

    @abstractmethod
    def from_dense(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module:
        """The module closest to `weight` (M, N), or to a table (V, D), on its device. ConfigError for another size."""

    def table_of(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as a matrix (N, M), detached. ConfigError for another size than the plan's."""
        if tuple(weight.shape) != self.dense_size:
            raise ConfigError(
                f"a weight of size {tuple(weight.shape)} was given, expected {self.dense_size}; plan it for this weight"
            )
        return weight.detach() if self.is_embedding else weight.detach().T


class Format(ABC):
    """A way to store linear layers. `options` are its keys in the section `tensor`, under its name."""

    name: ClassVar[str]
    options: ClassVar[type[Section]]
    linear_plan: ClassVar[type[MatrixPlan]]  # the class of its plans: a checkpoint's plans are read by its `tag`

    def options_in(self, section: Tensor) -> Section:
        """Its options as the configuration sets them."""
        options: Section = section.options_of(self.name)
        return options

    def rank_keys(self, section: Tensor, is_table: bool) -> list[str]:
        """Keys of the configuration that set its ranks and can be lowered, of tables or of linear layers."""
        options = self.options_in(section)
        if is_table and isinstance(self, Tables):
            options = self.table_options_in(section)
        return [f"tensor.{self.name}.{key}" for key, rank in options if "rank" in key and rank != 1]

    @abstractmethod
    def plan_linear(self, inputs: int, outputs: int, options: Any) -> MatrixPlan:
        """Plans a layer; `options` is an instance of the class `options`. ConfigError for impossible options."""


class Tables(ABC):
    """A format that can also store embedding tables, whose module has `to_dense`."""

    table_options: ClassVar[type[Section]]
    table_plan: ClassVar[type[MatrixPlan]]

    @abstractmethod
    def table_options_in(self, section: Tensor) -> Section:
        """Its options for tables as the configuration sets them."""

    @abstractmethod
    def plan_table(self, rows: int, width: int, options: Any) -> MatrixPlan:
        """Plans a table; `options` is an instance of `table_options`. ConfigError for impossible options."""


def given_rank(format: str, rank: int | None) -> int:
    """The rank; ConfigError for None, which a configuration replaces by `tensor.rank` but a user's model cannot."""
    if rank is None:
        raise ConfigError(f"the format {format} was chosen without a rank; give it one, as in rank=32")
    return rank
