"""Dion (Ahn et al. 2025, arXiv 2504.05295): momentum whose leading singular directions are made orthonormal.

Shapes: a matrix (M, N), R the rank of its update.
"""

from math import ceil, sqrt
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from comera_dist.config.fields import Number, Section, Share
from comera_dist.optim.base import RATE, Shape, State
from comera_dist.optim.each_matrix import EachMatrix, householder_flops

if TYPE_CHECKING:
    from torch import Tensor, nn

TINY = 1e-8  # keeps a norm of zero from dividing; the authors' epsilon


class Settings(Section):
    """Keys of optim.kind = dion. The defaults are those of the authors' code."""

    rank_fraction: Share = 1.0
    """Rank of the update as a share of the matrix's shorter side, rounded up."""
    momentum: Annotated[float, Number, Field(ge=0.0, lt=1.0)] = 0.95
    """Share μ of the applied directions that the momentum keeps."""


class Dion(EachMatrix):
    """With the momentum M, the gradient G and the right factor V (N, R), which is drawn at the first step:

    B = M + G; P (M, R) = an orthonormal basis of B·V; Y (N, R) = Bᵀ·P;
    M ← B − (1 − μ)·P·Yᵀ; V ← Y with columns of length 1.

    This is one step of power iteration, which begins where the last step ended. The momentum loses only the part that
    is applied, so the rest is applied later (error feedback). The update is the authors' √(M / N)·P·Vᵀ for M outputs
    and N inputs, times 8 as a step of spectral descent. Left out: their compressed all-reduce, sharded QR and
    low-precision state.
    """

    name = "dion"
    section = Settings
    _settings: Settings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        return {"momentum_buffer": shape, "right_factor": (shape[1], self._rank(*shape))}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """Four products with a matrix of R columns, and Householder's QR."""
        R = self._rank(rows, columns)
        return matrices * (8 * rows * columns * R + householder_flops(rows, R))

    def update(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor") -> "Tensor":
        from torch.linalg import qr

        from comera_dist.optim.draws import normals

        B_MN, V_NR = state["momentum_buffer"].add_(gradient_MN), state["right_factor"]
        if state["step"] == 1:
            V_NR.copy_(normals(f"dion/{self.layer_of(matrix)}", V_NR.shape))
        P_MR = qr(B_MN @ V_NR).Q
        Y_NR = B_MN.mT @ P_MR
        B_MN.addmm_(P_MR, Y_NR.mT, alpha=self._settings.momentum - 1)
        V_NR.copy_(Y_NR / (Y_NR.norm(dim=0) + TINY))
        (M, N) = gradient_MN.shape
        update_MN: Tensor = RATE * sqrt(M / N) * (P_MR @ V_NR.mT)
        return update_MN

    def _rank(self, rows: int, columns: int) -> int:
        return ceil(self._settings.rank_fraction * min(rows, columns))
