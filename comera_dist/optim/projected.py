"""What GaLore and its successors share: they keep moments of a low-rank projection of a matrix's gradient.

Shapes: a matrix (M, N) with the shorter side S and the longer side L. Gradient and update are seen as (S, L), so they
are transposed if M ≥ N. R is the rank of the projection, at most S.
"""

from typing import TYPE_CHECKING

from comera_dist.optim.base import Shape, State
from comera_dist.optim.each_matrix import EachMatrix

if TYPE_CHECKING:
    from torch import Tensor, nn


class Projected(EachMatrix):
    """A subclass makes the update of a matrix whose shorter side comes first."""

    def update(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor") -> "Tensor":
        # A square matrix is transposed, too, because GaLore projects its rows.
        if matrix.shape[0] >= matrix.shape[1]:
            return self.update_SL(matrix, state, gradient_MN.mT).mT
        return self.update_SL(matrix, state, gradient_MN)

    def update_SL(self, matrix: "nn.Parameter", state: State, gradient_SL: "Tensor") -> "Tensor":
        """As `update`, of the matrix or its transpose: (S, L)."""
        raise NotImplementedError


def projected_shapes(shape: Shape, rank: int) -> tuple[Shape, Shape]:
    """Shapes (R, L) of a matrix's projected gradient and (S, R) of its basis; R is `rank`, or S if that is less."""
    S, L = sorted(shape)
    R = min(rank, S)
    return (R, L), (S, R)


def projection_flops(products: int, matrices: int, rows: int, columns: int, rank: int) -> int:
    """FLOPs of so many products between a basis (S, R) and an (R, L) or (S, L), for each of `matrices`."""
    return 2 * products * matrices * rows * columns * min(rank, rows, columns)


def is_first_of_period(state: State, period: int) -> bool:
    """Whether this step is the first of `period` steps, counted from the run's first step."""
    return bool((state["step"] - 1) % period == 0)


def leading_basis(gradient_SL: "Tensor", rank: int) -> "Tensor":
    """Left singular vectors (S, R) of the R largest singular values, the largest entry of each positive.

    Moments outlive a basis, so its signs matter. A decomposition leaves them open, and rounding would decide.
    """
    import torch

    U_SR: Tensor = torch.linalg.svd(gradient_SL, full_matrices=False).U[:, :rank]
    largest_R = U_SR.gather(0, U_SR.abs().argmax(dim=0, keepdim=True))
    return U_SR * largest_R.sign()
