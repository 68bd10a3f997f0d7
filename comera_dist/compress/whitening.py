"""The norm in which the errors of all layers compare.

A small change ΔW of a layer changes the loss by about tr(G ΔW C ΔWᵀ) / 2T. C sums x xᵀ over T tokens and G sums g gᵀ,
the Kronecker factors of Martens and Grosse (2015, arXiv 1503.05671). In the coordinates G^½ W C^½ that is a sum of
squares. So a truncated singular value decomposition there is the closest weight, and squared singular values of
different layers are in one unit. With C alone it is the whitening of Wang et al. (2024, SVD-LLM, arXiv 2403.07378).

Shapes: N inputs in n blocks of c, M outputs in m blocks of b; places beyond N and M are padding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.compress.moments import Moments

# Part of the mean eigenvalue that is added to all, so that directions without data can be divided by. Losses of a
# compressed model are the same within 0.002 nats from 1e-5 to 1e-2 (docs/quality.md).
DAMPING = 1e-3


@dataclass(frozen=True)
class Roots:
    """Square roots of the diagonal blocks of a matrix, and their inverses, (blocks, size, size) each in fp64."""

    root: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, moments: Tensor, blocks: int, size: int) -> "Roots":
        """Of a symmetric matrix of at most blocks · size rows, which is padded."""
        damped = moments.double() + DAMPING * moments.diagonal().double().mean() * torch.eye(len(moments)).to(moments)
        padding = blocks * size - len(moments)
        padded = F.pad(damped, (0, padding, 0, padding))
        padded.diagonal()[len(moments) :] = 1.0
        split = padded.view(blocks, size, blocks, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        values, vectors = torch.linalg.eigh(split)
        root = values.clamp_min(torch.finfo(values.dtype).tiny).sqrt()[:, None, :]
        return cls((vectors * root) @ vectors.mT, (vectors / root) @ vectors.mT)


@dataclass(frozen=True)
class Whitening:
    """The change of coordinates of one layer, with C and G restricted to the blocks of a format's two factors."""

    inputs: Roots  # n blocks of c
    outputs: Roots  # m blocks of b

    @classmethod
    def of(cls, moments: Moments, in_blocks: tuple[int, int], out_blocks: tuple[int, int]) -> "Whitening":
        return cls(Roots.of(moments.inputs_NN, *in_blocks), Roots.of(moments.gradients_MM, *out_blocks))

    def blocks(self, weight_MN: Tensor) -> Tensor:
        """The blocks (n, m, c, b) of the whitened weight, transposed, in fp64."""
        n, c, m, b = *self.inputs.root.shape[:2], *self.outputs.root.shape[:2]
        table = F.pad(weight_MN.double().T, (0, m * b - weight_MN.shape[0], 0, n * c - weight_MN.shape[1]))
        blocks = table.view(n, c, m, b).transpose(1, 2)
        return self.inputs.root[:, None] @ blocks @ self.outputs.root

    def whitened(self, weight_MN: Tensor) -> Tensor:
        """The whitened weight (M, N) in fp64."""
        table = self.blocks(weight_MN).transpose(1, 2).flatten(2).flatten(0, 1)
        return table[: weight_MN.shape[1], : weight_MN.shape[0]].T

    def undo(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Factors (n, c, …) and (m, …, b) of a whitened weight become those of the weight."""
        unwhitened = self.inputs.inverse @ first.double(), last.double() @ self.outputs.inverse
        return unwhitened[0].to(first), unwhitened[1].to(last)
