"""The two merged sides that linear layers multiply by, gates included.

Shapes: N in-features, M out-features, R middle rank padded to what the hardware multiplies fast (see
`padded_rank`): U (N, R), V (R, M) with zeros in the padding; L equal sides that are merged together.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction import merge_in_side, merge_out_side
from comera_dist.formats.tensor_train.contraction_plan import padded_rank
from comera_dist.formats.tensor_train.tensor_train import TensorTrain, gate_cores
from comera_dist.formats.tensor_train.train_shapes import TTShape

Sides = tuple[Tensor, Tensor]

# Numbers of a merged side up to which equal sides are merged together. Beyond, one alone keeps the cores busy; and a
# stack holds the gradients of all its sides until the end of the backward pass.
STACKED_NUMBERS = 2**18


@dataclass(frozen=True)
class _Side:
    """One side of a layer: its cores, the gates to their right, its features, and zeros to add to the middle rank."""

    is_in: bool
    cores: Sequence[Tensor]
    gates: Sequence[Tensor]
    features: int
    surplus: int

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for sides that can be stacked."""
        return (self.is_in, self.features, *(core.shape for core in self.cores))

    @property
    def numbers(self) -> int:
        """How many numbers the merged side has."""
        return self.features * max(self.cores[0].shape[0], self.cores[-1].shape[-1])

    def merge(self, cores: Sequence[Tensor], gates: Sequence[Tensor]) -> Tensor:
        """U or V of cores and gates like this side's own, or of stacks of them."""
        gated = gate_cores(cores, gates)
        if self.is_in:
            gated[-1] = F.pad(gated[-1], (0, self.surplus)) if self.surplus else gated[-1]
            return merge_in_side(gated, self.features)
        gated[0] = F.pad(gated[0], (0, 0, 0, 0, 0, self.surplus)) if self.surplus else gated[0]
        return merge_out_side(gated, self.features)


def merge_sides_of(layers: Sequence[TensorTrain[TTShape]], stacked_numbers: int = STACKED_NUMBERS) -> list[Sides]:
    """U (N, R) and V (R, M) of each layer; equal sides of up to `stacked_numbers` numbers in batched products."""
    sides = [side for layer in layers for side in _sides(layer)]
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for index, side in enumerate(sides):
        pays_stacking = len(side.cores) > 1 and side.numbers <= stacked_numbers
        groups[side.kind if pays_stacking else index].append(index)
    merged: dict[int, Tensor] = {}
    for indices in groups.values():
        merged |= zip(indices, _merge_group([sides[index] for index in indices]), strict=True)
    return [(merged[2 * k], merged[2 * k + 1]) for k in range(len(layers))]


def _sides(layer: TensorTrain[TTShape]) -> tuple[_Side, _Side]:
    shape, cores, gates = layer.plan, layer.cores, layer.gates
    middle, surplus = shape.left_cores, padded_rank(shape.middle_rank, layer.core_1.device.type) - shape.middle_rank
    return (
        _Side(True, cores[:middle], gates[:middle], shape.inputs, surplus),
        _Side(False, cores[middle:], gates[middle:], shape.outputs, surplus),
    )


def _merge_group(sides: list[_Side]) -> Sequence[Tensor]:
    first = sides[0]
    if len(sides) == 1:
        return [first.merge(first.cores, first.gates)]
    cores = [torch.stack(stack) for stack in zip(*(side.cores for side in sides), strict=True)]
    gates = [torch.stack(stack)[:, None, None] for stack in zip(*(side.gates for side in sides), strict=True)]
    return first.merge(cores, gates).unbind()
