"""The format `shared`: blocks mix their matrices of one kind from a few matrices that they share.

The weights of one projection in all blocks are a tensor (L, M, N). Here it is a tensor train whose first core (L, A)
has the index of the block, and whose second core is dense: block l has the weight W_l = Σ_a mixture[l, a] · matrix_a.
Zhussip et al. 2025, "Share Your Attention" (arXiv 2508.04581), train the projections of attention so.

Shapes: L blocks, A matrices, N inputs, M outputs of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from comera_dist.config.fields import Positive, Section
from comera_dist.errors import ConfigError
from comera_dist.formats.base import FP32, MIXTURE, Format, Sizes, StepCost
from comera_dist.formats.dense import DensePlan

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class SharedPlan(DensePlan):
    """The matrix of one block. The first A of the blocks that share own a matrix each, the others only a mixture.

    `place` counts the blocks that share from 1. It is None until `models.shared_matrices.placed` has seen the blocks.
    """

    matrices: int = 1
    place: int | None = None
    tag = "shared"

    def __post_init__(self) -> None:
        if self.matrices < 1 or (self.place is not None and self.place < 1):
            raise ConfigError(
                f"a mixture of {self.matrices} matrices in block {self.place} cannot be; take at least one matrix, "
                f"and count blocks from 1"
            )

    @property
    def owns_matrix(self) -> bool:
        return self.place is not None and self.place <= self.matrices

    @property
    def tensors(self) -> dict[str, Sizes]:
        own = {"shared.weight": self.dense_size} if self.owns_matrix else {}
        return {MIXTURE: (self.matrices,), **own}

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        return {"shared.weight": (1, *self.dense_size)} if self.owns_matrix else {}

    @property
    def merge_flops(self) -> int:
        """FLOPs of mixing the weight."""
        return 2 * self.matrices * self.dense_parameters

    @property
    def is_oversize(self) -> bool:
        """Never: what a block stores more than a dense one are a few coefficients, and later blocks store no more."""
        return False

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        moved = 3 * FP32 * (self.matrices + 1) * self.dense_parameters
        mixing = StepCost("mixed weight", 3 * self.merge_flops, moved)
        return mixing + super().step_cost(tokens, device_type, itemsize, is_head)

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        from comera_dist.formats.shared_layers import SharedLinear

        if self.place is None:
            raise ConfigError(
                f"the format {self.tag} was chosen for a single layer, but it needs the blocks of a configured model; "
                f"choose another format"
            )
        layer = SharedLinear(self, bias)
        if layer.shared is not None and generator is not None:
            layer.shared.weight.data.normal_(std=std, generator=generator)
        return layer

    @property
    def description(self) -> str:
        return f"{self.matrices} shared"


class SharedOptions(Section):
    """Keys of `tensor.shared`."""

    matrices: Positive = 1
    """Matrices that all blocks together store of each projection, such as one for all query projections."""


class Shared(Format):
    """Mixes the matrices of all blocks from a few."""

    name = "shared"
    options = SharedOptions
    linear_plan = SharedPlan

    def plan_linear(self, inputs: int, outputs: int, options: SharedOptions) -> SharedPlan:
        return SharedPlan(inputs, outputs, matrices=options.matrices)


SHARED = Shared()
