"""MoFaSGD (Mahdavinia and Mahdavi 2025, arXiv 2507.08091): momentum that is kept as a singular value decomposition.

Shapes: a matrix (M, N), R the rank of its momentum.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from comera_dist.config.fields import NonNegative, Number, Positive, Section
from comera_dist.optim.base import Shape, State
from comera_dist.optim.each_matrix import EachMatrix, householder_flops, muon_scale

if TYPE_CHECKING:
    from torch import Tensor, nn

FIRST_MOMENTUM = 0.75  # from which the momentum rises in the authors' runs of NanoGPT

Factors = tuple["Tensor", "Tensor", "Tensor"]  # U (M, R), s (R,), V (N, R)


class Settings(Section):
    """Keys of optim.kind = mofasgd. The defaults are those of the authors' runs of NanoGPT."""

    rank: Positive = 32
    """Rank of the momentum."""
    momentum: Annotated[float, Number, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay rate β of the sum of gradients."""
    momentum_warmup_steps: NonNegative = 300
    """Steps over which the decay rate rises linearly from 0.75."""


class MoFaSGD(EachMatrix):
    """With the gradient G and the momentum U·diag(s)·Vᵀ of U (M, R), s (R,), V (N, R):

    U·diag(s)·Vᵀ ← the best approximation of rank R to β·U·diag(s)·Vᵀ + (UUᵀG + GVVᵀ − UUᵀGVVᵀ).

    The bracket is the gradient's projection on the tangent space of matrices of rank R. The sum has at most rank 2R, so
    two QR decompositions and a singular value decomposition of 2R x 2R give the approximation. The update is U·Vᵀ in
    Muon's scale, so one learning rate suits both. The momentum begins with the first gradient.
    Left out: from the authors' code the start from the weight's singular vectors, the reciprocals of s and the step in
    the complement of U and V.
    """

    name = "mofasgd"
    section = Settings
    _settings: Settings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        (M, N), R = shape, min(self._settings.rank, *shape)
        return {"left_factor": (M, R), "singular_values": (R,), "right_factor": (N, R)}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """Three products with a matrix of R columns, Uᵀ·GV, Householder's QR of 2R columns and the new factors."""
        R = min(self._settings.rank, rows, columns)
        of_each_side = householder_flops(rows, 2 * R) + householder_flops(columns, 2 * R) + 4 * (rows + columns) * R**2
        return matrices * (6 * rows * columns * R + 2 * rows * R**2 + of_each_side)

    def update(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor") -> "Tensor":
        kept = state["left_factor"], state["singular_values"], state["right_factor"]
        R = len(kept[1])
        first = state["step"] == 1
        news = _leading(gradient_MN, R) if first else _advanced(kept, gradient_MN, self._momentum(state["step"]))
        for tensor, new in zip(kept, news, strict=True):
            tensor.copy_(new)
        U_MR, values_R, V_NR = kept
        direction_MN: Tensor = (U_MR * _is_positive(values_R, max(gradient_MN.shape))) @ V_NR.mT
        return muon_scale(*gradient_MN.shape) * direction_MN

    def _momentum(self, step: int) -> float:
        """β of a step: at the first one FIRST_MOMENTUM or less."""
        highest, lowest = self._settings.momentum, min(FIRST_MOMENTUM, self._settings.momentum)
        return lowest + (highest - lowest) * min(1.0, (step - 1) / max(1, self._settings.momentum_warmup_steps))


def _leading(matrix: "Tensor", R: int) -> Factors:
    """The R largest singular values of a matrix with their vectors."""
    from torch.linalg import svd

    U, values, Vh = svd(matrix, full_matrices=False)
    return U[:, :R], values[:R], Vh[:R].mT


def _advanced(factors: Factors, gradient_MN: "Tensor", momentum: float) -> Factors:
    """The factors of the next momentum, from the sum X·C·Yᵀ with X = [U, GV], Y = [V, GᵀU] and a small matrix C."""
    from torch import cat
    from torch.linalg import qr

    U_MR, values_R, V_NR = factors
    GV_MR, R = gradient_MN @ V_NR, len(values_R)
    X, X_upper = qr(cat((U_MR, GV_MR), dim=1))
    Y, Y_upper = qr(cat((V_NR, gradient_MN.mT @ U_MR), dim=1))
    (of_U, of_GV), (of_V, of_GU) = X_upper.split(R, dim=1), Y_upper.split(R, dim=1)
    inner_RR = (momentum * values_R).diag() - U_MR.mT @ GV_MR
    left, values_R, right = _leading(of_U @ (inner_RR @ of_V.mT + of_GU.mT) + of_GV @ of_V.mT, R)
    return X @ left, values_R, Y @ right


def _is_positive(values_R: "Tensor", longest: int) -> "Tensor":
    """1 for each singular value above rounding, else 0: the vectors of the others are arbitrary.

    The bound is that of numpy.linalg.matrix_rank.
    """
    from torch import finfo

    return (values_R > values_R[0] * longest * finfo(values_R.dtype).eps).to(values_R)
