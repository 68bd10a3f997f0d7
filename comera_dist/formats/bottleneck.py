"""Low rank with an activation in the bottleneck: y = (silu(x A) · gate) B + bias.

Shapes: N in-features, M out-features, R width of the bottleneck; core_1 is A (N, R), gate_1 (R,), core_2 is B (R, M).

Liu et al. 2025, "CoLA: Compute-Efficient Pre-Training of LLMs via Low-Rank Activation" (arXiv 2502.10940). It is not a
linear map, so it has no dense equal and cannot take over a given weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.config.fields import Positive, Section
from comera_dist.config.tensor_section import Tensor as TensorSection
from comera_dist.formats.base import (
    Axis,
    Draw,
    Format,
    LayerState,
    MatrixPlan,
    Product,
    Resizable,
    Sizes,
    StepCost,
    Unfoldings,
    given_rank,
)
from comera_dist.formats.dense_layers import Then
from comera_dist.formats.gated_layer import GatedLayer, opened
from comera_dist.formats.removed import RemovedPlan
from comera_dist.ops.autocast import compute_dtype
from comera_dist.ops.products import linear, multiply

SILU_SQUARE = 0.3557  # E[silu(z)²] for z ~ N(0, 1), by numerical integration


class BottleneckOptions(Section):
    """Keys of `tensor.bottleneck`."""

    rank: Positive | None = None
    """Width of the bottleneck; null takes `tensor.rank`."""


@dataclass(frozen=True)
class BottleneckPlan(Resizable, Unfoldings):
    """A layer N → M of two matrices with SiLU between them."""

    inputs: int
    outputs: int
    rank: int
    tag = "bottleneck"

    @property
    def tensors(self) -> dict[str, Sizes]:
        return {"core_1": (self.inputs, self.rank), "core_2": (self.rank, self.outputs), "gate_1": (self.rank,)}

    @property
    def flops_per_token(self) -> int:
        return 2 * self.num_parameters

    @property
    def axes(self) -> dict[str, tuple[Axis, ...]]:
        return {"core_1": (Axis(1, 1, is_drawn=True),), "core_2": (Axis(0, 1),)}

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        return {"core_1": (1, self.inputs, self.rank), "core_2": (1, self.rank, self.outputs)}

    def with_bonds(self, bonds: list[int]) -> MatrixPlan:
        return replace(self, rank=bonds[0]) if bonds[0] else RemovedPlan(self.inputs, self.outputs)

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        products = Product(tokens, self.inputs, self.rank), Product(tokens, self.rank, self.outputs)
        return StepCost.of_products("bottleneck", itemsize, *products)

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        layer = BottleneckLinear(self, bias)
        if generator is not None:
            # The first matrix keeps the variance of its input; the output has that of a dense layer N(0, std²).
            nn.init.normal_(layer.core_1, std=self.inputs**-0.5, generator=generator)
            outer = std * (self.inputs / (self.rank * SILU_SQUARE)) ** 0.5
            nn.init.normal_(layer.core_2, std=outer, generator=generator)
        return layer

    def balanced(self, state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
        """Gates folded into the second matrix; an activation leaves no other freedom of gauge."""
        gate = state["gate_1"]["weight"]
        inverse = torch.where(gate == 0, 0.0, 1 / gate)
        factors = {"weight": gate, "mean": inverse, "square": inverse.square()}
        folded = {k: old * factors[roles.get(k, k)][:, None] for k, old in state["core_2"].items()}
        return {**state, "core_2": folded, "gate_1": opened(state["gate_1"])}

    @property
    def description(self) -> str:
        return f"{self.inputs} | silu | {self.outputs}"


class BottleneckLinear(GatedLayer[BottleneckPlan]):
    """y (…, M) of x (…, N), in the dtype of x or of autocast."""

    core_1: nn.Parameter
    core_2: nn.Parameter
    gate_1: nn.Parameter

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        """y, or then(silu(x A) · gate, Bᵀ), so that a loss need not hold all of y."""
        dtype = compute_dtype(x)
        narrow = (F.silu(multiply(x.to(dtype), self.core_1.to(dtype))) * self.gate_1).to(dtype)
        if then is not None:
            return then(narrow, self.core_2.T)
        return linear(narrow, self.core_2.T.to(dtype), None if self.bias is None else self.bias.to(dtype))


class BottleneckFormat(Format):
    """Stores linear layers as two matrices with an activation between them; has no tables and no dense equal."""

    name = "bottleneck"
    options = BottleneckOptions
    linear_plan = BottleneckPlan

    def options_in(self, section: TensorSection) -> BottleneckOptions:
        return BottleneckOptions(rank=section.options_of(self.name).rank or section.rank)

    def plan_linear(self, inputs: int, outputs: int, options: BottleneckOptions) -> BottleneckPlan:
        return BottleneckPlan(inputs, outputs, min(given_rank(self.name, options.rank), inputs, outputs))


BOTTLENECK = BottleneckFormat()
