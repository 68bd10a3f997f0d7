"""What GaLore and its successors share: they keep moments of a low-rank projection of a matrix's gradient.

Shapes: a matrix (M, N) with the shorter side S and the longer side L. Gradient and update are seen as (S, L), so they
are transposed if M ≥ N. R is the rank of the projection, at most S.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from comera_dist.optim.base import Group, Shape, State, WholeMatrices

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Projected(WholeMatrices):
    """Steps matrix by matrix. A subclass declares what it keeps of a matrix (`shapes`) and makes the `update`.

    The state of a matrix has these tensors and the integer `step`.
    """

    roles: ClassVar[Mapping[str, str]] = {}  # nothing that it keeps is shaped like the matrix

    def update(self, matrix: "nn.Parameter", state: State, gradient_SL: "Tensor") -> "Tensor":
        """What a step subtracts from the matrix at a learning rate of 1, without weight decay: (S, L).

        Changes the tensors of `state` in place. `state["step"]` counts this step already.
        """
        raise NotImplementedError

    def build(self, groups: list[Group]) -> "Optimizer":
        from comera_dist.optim.projected_steps import ProjectedSteps

        return ProjectedSteps(groups, self.config.lr)

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        return {"step": step, **super().blank(parameter, step)}

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        return {kind: tensor for kind, tensor in state.items() if kind != "step"}


def projected_shapes(shape: Shape, rank: int) -> tuple[Shape, Shape]:
    """Shapes (R, L) of a matrix's projected gradient and (S, R) of its basis; R is `rank`, or S if that is less."""
    S, L = sorted(shape)
    R = min(rank, S)
    return (R, L), (S, R)


def projection_flops(products: int, matrices: int, rows: int, columns: int, rank: int) -> int:
    """FLOPs of so many products between a basis (S, R) and an (R, L) or (S, L), for each of `matrices`."""
    return 2 * products * matrices * rows * columns * min(rank, rows, columns)


def shorter_side_first(matrix: "Tensor") -> "Tensor":
    """A view (S, L) of a matrix (M, N). A square one is transposed, because GaLore projects its rows."""
    return matrix.mT if matrix.shape[0] >= matrix.shape[1] else matrix


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
