"""The two merged sides of linear layers: what the layers multiply by, gates included.

Shapes: N in-features, M out-features, R middle rank padded to what the hardware multiplies fast (see
`padded_rank`): U (N, R), V (R, M) with zeros in the padding; L equal sides that are merged together.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction import merge_in_side, merge_out_side
from comera_dist.formats.tensor_train.contraction_plan import padded_rank
from comera_dist.formats.tensor_train.gates import gate_cores
from comera_dist.formats.tensor_train.tensor_train import TensorTrain

Sides = tuple[Tensor, Tensor]

# Numbers of a merged side up to which equal sides are merged together. Beyond, one alone keeps the cores busy; and a
# stack holds the gradients of all its sides until the end of the backward pass.
STACKED_NUMBERS = 2**18


@dataclass(frozen=True)
class _Side:
    """One side of a layer: its cores, the gates to their right, its features, and how it is padded and merged."""

    cores: list[Tensor]
    gates: list[Tensor]
    features: int
    padding: tuple[int, ...]  # as F.pad takes it, of the core at the middle bond
    merge: Callable[[list[Tensor], int], Tensor]

    @property
    def kind(self) -> tuple:
        """Equal for sides that can be stacked."""
        return (self.merge, self.features, *(core.shape for core in self.cores))

    @property
    def pays_stacking(self) -> bool:
        rank = max(self.cores[0].shape[0], self.cores[-1].shape[-1])
        return len(self.cores) > 1 and self.features * rank <= STACKED_NUMBERS


def merge_sides_of(layers: Sequence[TensorTrain]) -> list[Sides]:
    """U (N, R) and V (R, M) of each layer; equal small sides of many layers in batched products."""
    sides = [side for layer in layers for side in (_in_side(layer), _out_side(layer))]
    groups = defaultdict(list)
    for index, side in enumerate(sides):
        groups[side.kind if side.pays_stacking else index].append(index)
    merged: dict[int, Tensor] = {}
    for indices in groups.values():
        merged |= zip(indices, _merge_group([sides[index] for index in indices]), strict=True)
    return [(merged[2 * k], merged[2 * k + 1]) for k in range(len(layers))]


def _in_side(layer: TensorTrain) -> _Side:
    shape, middle = layer.shape, len(layer.shape.in_modes)
    return _Side(layer.cores[:middle], layer.gates[:middle], shape.in_features, (0, _surplus(layer)), merge_in_side)


def _out_side(layer: TensorTrain) -> _Side:
    shape, middle = layer.shape, len(layer.shape.in_modes)
    padding = (0, 0, 0, 0, 0, _surplus(layer))
    return _Side(layer.cores[middle:], layer.gates[middle:], shape.out_features, padding, merge_out_side)


def _surplus(layer: TensorTrain) -> int:
    rank = layer.shape.middle_rank
    return padded_rank(rank, layer.core_1.device.type) - rank


def _merge_group(sides: list[_Side]) -> Sequence[Tensor]:
    first = sides[0]
    if len(sides) == 1:
        return [first.merge(_padded(gate_cores(first.cores, first.gates), first), first.features)]
    cores = [torch.stack(stack) for stack in zip(*(side.cores for side in sides), strict=True)]
    gates = [torch.stack(stack)[:, None, None] for stack in zip(*(side.gates for side in sides), strict=True)]
    return first.merge(_padded(gate_cores(cores, gates), first), first.features).unbind()


def _padded(cores: list[Tensor], side: _Side) -> list[Tensor]:
    """The cores with zeros beyond the middle rank: after the last core's, or before the first core's own numbers."""
    if not any(side.padding):
        return cores
    if side.merge is merge_in_side:
        return [*cores[:-1], F.pad(cores[-1], side.padding)]
    return [F.pad(cores[0], side.padding), *cores[1:]]
