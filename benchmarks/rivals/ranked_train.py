"""Cores, rank vectors and masks of CoMERA's scheme, and the bookkeeping that its objectives do with them at every step.

Yang et al., "CoMERA: Computing- and Memory-Efficient Training via Rank-Adaptive Tensor Optimization", NeurIPS 2024,
arXiv 2405.14377. The bookkeeping goes layer by layer and core by core, as published: how many operations that takes is
part of what is compared. For the six-encoder the penalty takes as many as in the public code, and the size fewer.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor, nn

THRESHOLD = 1e-2  # a rank whose entry of the rank vector is not above it is masked


class RankedTrain(nn.Module):
    """Cores (r_{k-1}, …, r_k) with a rank vector (r_k,) on each inner bond and the 0/1 mask of its active entries.

    Starts with all ranks active and entries of variance std² in the whole tensor.
    """

    def __init__(self, core_shapes: list[tuple[int, ...]], std: float):
        super().__init__()
        bonds = [shape[-1] for shape in core_shapes[:-1]]
        core_std = (std**2 / prod(bonds)) ** (0.5 / len(core_shapes))
        self.cores = nn.ParameterList(torch.randn(shape) * core_std for shape in core_shapes)
        self.rank_vectors = nn.ParameterList(torch.ones(bond) for bond in bonds)
        for k, bond in enumerate(bonds):
            self.register_buffer(f"mask_{k}", torch.ones(bond))

    @property
    def masks(self) -> list[Tensor]:
        """Of the last forward pass."""
        return [getattr(self, f"mask_{k}") for k in range(len(self.rank_vectors))]

    def masked_cores(self) -> list[Tensor]:
        """Cores times the active entries of the rank vectors to their right; renews the masks."""
        cores = list(self.cores)
        for k, vector in enumerate(self.rank_vectors):
            # A new tensor, because an earlier forward pass may still need the old mask for its backward pass.
            mask = (vector.detach() > THRESHOLD).to(vector.dtype)
            setattr(self, f"mask_{k}", mask)
            cores[k] = cores[k] * (vector * mask)
        return cores


def rank_penalty(module: nn.Module) -> Tensor:
    """Mean of the active |rank vector entries| of all trains in `module`; NaN where none is active, as published."""
    total, count = 0, 0
    for train in _trains(module):
        for vector, mask in zip(train.rank_vectors, train.masks, strict=True):
            total = total + (vector.abs() * mask).sum()
            count = count + mask.sum()
    return total / count


def compressed_size(module: nn.Module) -> Tensor:
    """Numbers in the active part of all cores in `module`: active ranks left x modes x active ranks right, summed.

    Both modes of an embedding's core are counted.
    """
    total = 0
    for train in _trains(module):
        masks = [None, *train.masks, None]
        for core, left, right in zip(train.cores, masks, masks[1:], strict=False):
            total = total + _active(left) * prod(core.shape[1:-1]) * _active(right)
    return total


def _trains(module: nn.Module) -> Iterator[RankedTrain]:
    return (child for child in module.modules() if isinstance(child, RankedTrain))


def _active(mask: Tensor | None) -> Tensor | int:
    return 1 if mask is None else mask.sum()
