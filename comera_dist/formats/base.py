"""What a format of weights brings: options, plans of matrices, and the capabilities that it has.

Shapes: N inputs, M outputs of a matrix (an embedding: rows → width), T tokens.

A format plans a matrix before any tensor exists; the plan builds the module. What not every format can do is a type of
its own, which a caller asks for: `Tables` of the format; `FromDense`, `Resizable` and `Unfoldings` of the plan; and the
types of capabilities.py of the module. This file imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from comera_dist.config.fields import Section

if TYPE_CHECKING:
    import torch
    from torch import nn

    from comera_dist.config.tree import Tensor

Sizes = tuple[int, ...]

FP32 = 4  # bytes of a number


@dataclass(frozen=True)
class StepCost:
    """Forward and backward of one layer over all tokens; `path` says how it is computed."""

    path: str
    flops: int
    bytes_moved: int


class MatrixPlan(ABC):
    """How one weight matrix is stored. Plans are frozen dataclasses of integers, tuples and strings.

    `inputs` is N and `outputs` M; of an embedding they are rows and width. `num_parameters` counts stored numbers,
    gates and biases left out, `flops_per_token` multiply-adds × 2 of one token's forward pass. `merge_flops` are paid
    once per forward pass, however many tokens it has. `tag` names the class in a checkpoint.
    """

    tag: ClassVar[str]
    inputs: int
    outputs: int
    num_parameters: int
    flops_per_token: int
    is_embedding: bool = False
    num_gates: int = 0
    merge_flops: int = 0

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Sizes]:
        """Names and shapes of the parameters, biases left out."""

    @abstractmethod
    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        """Cost of a training step over `tokens` tokens of numbers of `itemsize` bytes.

        The head of a vocabulary is never multiplied to all logits (`is_head`).
        """

    @abstractmethod
    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        """The module, on the CPU: weights with the mean square std², drawn from `generator` or, where it is None, left
        for the caller to load; a bias of zeros where asked for."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Modes, blocks or the like, for a table on the console."""

    @property
    def dense_parameters(self) -> int:
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Stored numbers, gates included."""
        return self.num_parameters + self.num_gates

    def forward_flops(self, tokens: int, device_type: str = "cpu") -> int:
        """FLOPs of a forward pass over `tokens` tokens, merging included."""
        return tokens * self.flops_per_token + self.merge_flops

    def to_json(self) -> dict[str, Any]:
        return {"format": self.tag, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Axis:
    """An axis `dim` of a parameter whose indices are those of bond number `bond` (from 1).

    A new index gets random numbers where `is_drawn`, else zeros: of the parameters that share a bond one is drawn, so
    that the weight stays as it is and a gradient reaches both.
    """

    dim: int
    bond: int
    is_drawn: bool = False


# Of each parameter of a layer the weight and, by kind, the tensors that an optimizer keeps of it.
LayerState = dict[str, dict[str, "torch.Tensor"]]
Draw = Callable[[str, Any], "torch.Tensor"]  # standard normal numbers for a parameter's name and a shape


class Resizable(MatrixPlan):
    """A plan whose inner bonds, of ranks `bonds` r_1 … r_{K-1}, can change while a run goes on.

    A vector of gates, gate_k (r_k,), is multiplied on bond k.
    """

    bonds: Sizes

    @property
    @abstractmethod
    def core_sizes(self) -> Sizes:
        """Numbers that core k = 1 … K stores for each pair of indices of bonds k - 1 and k; r_0 = r_K = 1."""

    @abstractmethod
    def with_bonds(self, bonds: list[int]) -> MatrixPlan:
        """The same matrix at other ranks of its inner bonds; a RemovedPlan where one of them is 0."""

    @abstractmethod
    def largest_bonds(self, bonds: list[int]) -> list[int]:
        """The rank of each bond that its neighbours can fill, the other bonds being `bonds`."""

    @property
    @abstractmethod
    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """Axes of the parameters that belong to bonds, gates left out; drawn ones first."""

    @property
    def num_gates(self) -> int:  # type: ignore[override]
        return sum(self.bonds)

    def balanced(self, state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
        """The same weight in balanced canonical form with open gates, and moments moved along.

        `roles` says of each kind of moment whether it is a "mean" of gradients or of their "square". A format without a
        gauge freedom returns the state as it is.
        """
        return state


class Unfoldings(MatrixPlan):
    """A plan whose parameters are batches of matrices that a matrix optimizer steps on."""

    @property
    @abstractmethod
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        """(matrices, rows, columns) by parameter: a parameter reshaped so is a batch of matrices."""


class FromDense(MatrixPlan):
    """A plan whose module can stand for a given dense weight."""

    @abstractmethod
    def from_dense(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Module:
        """The module closest to `weight` (M, N), or to a table (V, D), on its device. ConfigError for another size."""


class Format(ABC):
    """A way to store linear layers. `options` are its keys in the section `tensor`, under its name."""

    name: ClassVar[str]
    options: ClassVar[type[Section]]
    linear_plan: ClassVar[type[MatrixPlan]]  # the class of its plans: capabilities are known before there is a plan

    def options_in(self, section: Tensor) -> Section:
        """Its options, as the configuration has them."""
        return section.options_of(self.name)

    def rank_keys(self, section: Tensor, is_table: bool) -> list[str]:
        """Keys of the configuration that set its ranks and can be lowered, of tables or of linear layers."""
        of_tables = is_table and isinstance(self, Tables)
        options = self.table_options_in(section) if of_tables else self.options_in(section)
        return [f"tensor.{self.name}.{key}" for key, rank in options if "rank" in key and rank != 1]

    @abstractmethod
    def plan_linear(self, inputs: int, outputs: int, options: Any) -> MatrixPlan:
        """ConfigError for options that are impossible for this size."""


class Tables(ABC):
    """A format that can also store embedding tables, whose module has `to_dense`."""

    table_options: ClassVar[type[Section]]
    table_plan: ClassVar[type[MatrixPlan]]

    @abstractmethod
    def table_options_in(self, section: Tensor) -> Section:
        """Its options for tables, as the configuration has them."""

    @abstractmethod
    def plan_table(self, rows: int, width: int, options: Any) -> MatrixPlan:
        """ConfigError for options that are impossible for this size."""
