"""A format of weights from outside the package: a diagonal matrix.

Shapes: D features in and out; the weight is diag(scale_D).
"""

from dataclasses import dataclass

import torch
from torch import nn

from comera_dist.config.fields import Positive, Section
from comera_dist.errors import ConfigError
from comera_dist.formats.base import Format, MatrixPlan, StepCost


class DiagonalOptions(Section):
    """Keys of the format diagonal."""

    gain: Positive = 1
    """Factor of the first weights."""


@dataclass(frozen=True)
class DiagonalPlan(MatrixPlan):
    inputs: int
    outputs: int
    gain: int
    offset: int = 0  # of the diagonal; a plan may hold 0
    tag = "diagonal"

    @property
    def num_parameters(self):
        return self.inputs

    @property
    def flops_per_token(self):
        return 2 * self.inputs

    @property
    def tensors(self):
        return {"scale": (self.inputs,)}

    def step_cost(self, tokens, device_type, itemsize, is_head=False):
        return StepCost("diagonal", 6 * tokens * self.inputs, 3 * itemsize * tokens * self.inputs)

    def build(self, std, generator, bias=False):
        return Diagonal(self, std, generator, bias)

    @property
    def description(self):
        return "diagonal"


class Diagonal(nn.Module):
    def __init__(self, plan, std, generator, bias):
        super().__init__()
        self.plan = plan
        drawn = torch.empty(plan.inputs) if generator is None else torch.randn(plan.inputs, generator=generator)
        self.scale = nn.Parameter(drawn * std * plan.gain * plan.inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(plan.outputs)) if bias else None

    def forward(self, x):
        y = x * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)

    def to_dense(self):
        return torch.diag(self.scale)


class DiagonalFormat(Format):
    name = "diagonal"
    options = DiagonalOptions
    linear_plan = DiagonalPlan

    def plan_linear(self, inputs, outputs, options):
        if inputs != outputs:
            raise ConfigError(f"a diagonal of {inputs} x {outputs} is not square; choose another format for this layer")
        return DiagonalPlan(inputs, outputs, options.gain)
