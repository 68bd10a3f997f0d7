"""Dense weights: the matrix itself.

Shapes: N inputs, M outputs of a matrix (an embedding: V rows, D width), T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from comera_dist.config.fields import Section
from comera_dist.formats.base import FP32, Format, Product, Sizes, StepCost, Tables, Unfoldings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from comera_dist.config.tensor_section import Tensor


@dataclass(frozen=True)
class DensePlan(Unfoldings):
    """A dense matrix (M, N) of a linear layer, or a table (V, D)."""

    inputs: int
    outputs: int
    is_embedding: bool = False
    tag = "dense"

    @property
    def flops_per_token(self) -> int:
        return 0 if self.is_embedding else 2 * self.dense_parameters

    @property
    def tensors(self) -> dict[str, Sizes]:
        return {"weight": self.dense_size}

    @property
    def cores(self) -> dict[str, Sizes]:
        return {}

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        return {"weight": (1, *self.dense_size)}

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        if self.is_embedding:
            return StepCost("lookup", 0, gathered_bytes(tokens, self.outputs))
        return StepCost.of_products("weight", itemsize, Product(tokens, self.inputs, self.outputs))

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        from comera_dist.formats.dense_layers import build_dense

        return build_dense(self, std, generator, bias)


class NoOptions(Section):
    """A format without keys."""


class Dense(Format, Tables):
    """Stores the matrix itself."""

    name = "dense"
    options = table_options = NoOptions
    linear_plan = table_plan = DensePlan

    def plan_linear(self, inputs: int, outputs: int, options: NoOptions) -> DensePlan:
        return DensePlan(inputs, outputs)

    def table_options_in(self, section: Tensor) -> Section:
        return self.options_in(section)

    def plan_table(self, rows: int, width: int, options: NoOptions) -> DensePlan:
        return DensePlan(rows, width, is_embedding=True)


DENSE = Dense()


def gathered_bytes(tokens: int, width: int) -> int:
    """Bytes that a lookup of (T, D) in fp32 moves: rows are read and written, forward and backward."""
    return 2 * 2 * FP32 * tokens * width
