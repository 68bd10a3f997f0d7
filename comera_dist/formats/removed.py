"""The plan of a linear layer that rank adaptation has removed: nothing is stored, the output is zero or the bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from comera_dist.formats.base import MatrixPlan, Sizes, StepCost

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class RemovedPlan(MatrixPlan):
    """A zero matrix (M, N). No configuration asks for it."""

    inputs: int
    outputs: int
    tag = "removed"
    flops_per_token = 0

    @property
    def tensors(self) -> dict[str, Sizes]:
        return {}

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        return StepCost("removed", 0, 0)

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        from comera_dist.formats.dense_layers import RemovedLinear

        return RemovedLinear(self.inputs, self.outputs, bias)
