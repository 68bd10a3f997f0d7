"""The common base of linear layers and embeddings whose weight is a tensor train."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from comera_dist.formats.gated_layer import GatedLayer
from comera_dist.formats.tensor_train.cores import random_cores
from comera_dist.formats.tensor_train.train_shapes import TrainShape

S = TypeVar("S", bound=TrainShape)


class TensorTrain(GatedLayer[S]):
    """Parameters core_k (r_{k-1}, *modes_k, r_k) and gate_k (r_k,), named by a TrainShape.

    They are kept in `dtype`. Cores are drawn by `random_cores`, or take the values of `cores`, if given (an empty
    sequence leaves them without values).
    """

    core_1: nn.Parameter

    def __init__(
        self,
        plan: S,
        bias: bool = False,
        std: float | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        cores: Sequence[Tensor] | None = None,
    ):
        super().__init__(plan, bias, dtype)
        drawn = random_cores(plan, std, generator) if cores is None else cores
        for parameter, core in zip(self.cores, drawn, strict=False):
            parameter.data.copy_(core)

    @property
    def cores(self) -> list[nn.Parameter]:
        return [getattr(self, f"core_{k}") for k in range(1, len(self.plan.ranks))]

    def gated_cores(self) -> list[Tensor]:
        return gate_cores(self.cores, self.gates)


def gate_cores(cores: Sequence[Tensor], gates: Sequence[Tensor]) -> list[Tensor]:
    """Cores with every gate multiplied into the core on its left; a last core without a gate stays as it is."""
    return [core * gate for core, gate in zip(cores, gates, strict=False)] + list(cores[len(gates) :])
