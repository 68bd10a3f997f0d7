"""The plain lookup in a tensor-train matrix: nothing is shared between tokens.

Shapes: T tokens; cores (r_{k-1}, v_k, e_k, r_k); E the width multiplied so far, R the bond to the right of it; F
and S the width mode and the right bond of the next core.
"""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Modes = tuple[int, ...]
STD = 0.02


class PlainTTMEmbedding(nn.Module):
    """Gathers a slice of every core for each token and multiplies the slices from left to right; plain autograd."""

    def __init__(self, vocab_modes: Modes, width_modes: Modes, ranks: Modes):
        super().__init__()
        core_std = (STD**2 / prod(ranks)) ** (0.5 / len(vocab_modes))
        shapes = zip(ranks[:-1], vocab_modes, width_modes, ranks[1:], strict=True)
        self.cores = nn.ParameterList(torch.randn(shape) * core_std for shape in shapes)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows (…, width) of the ids (…)."""
        digits = _digits(ids.flatten(), [core.shape[1] for core in self.cores])
        slices = [
            F.embedding(digit_T, core.transpose(0, 1).flatten(1)).unflatten(1, (core.shape[0], *core.shape[2:]))
            for digit_T, core in zip(digits, self.cores, strict=True)
        ]
        rows_TER = slices[0].flatten(1, 2)
        for slice_TRFS in slices[1:]:
            product = rows_TER @ slice_TRFS.flatten(2)
            rows_TER = product.unflatten(2, slice_TRFS.shape[2:]).flatten(1, 2)
        return rows_TER.flatten(1).unflatten(0, ids.shape)


def _digits(ids_T: Tensor, modes: list[int]) -> list[Tensor]:
    digits = []
    for mode in reversed(modes):
        digits.append(ids_T % mode)
        ids_T = ids_T // mode
    return digits[::-1]
