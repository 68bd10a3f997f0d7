"""MLorc (Shen et al. 2025, arXiv 2506.01897): AdamW that keeps both moments as factors of low rank.

Shapes: a matrix (M, N), R the rank of its moments, K = R + oversampling the columns of a sketch.
"""

from typing import TYPE_CHECKING

from comera_dist.config.fields import NonNegative, Positive, Section
from comera_dist.config.optim_section import Decay
from comera_dist.optim.base import Shape, State
from comera_dist.optim.each_matrix import EachMatrix, adam_direction, householder_flops

if TYPE_CHECKING:
    from torch import Tensor, nn

MOMENTS = ("exp_avg", "exp_avg_sq")


class Settings(Section):
    """Keys of optim.kind = mlorc. The defaults are those of the authors' code."""

    rank: Positive = 4
    """Rank of both moments between two steps."""
    oversampling: NonNegative = 0
    """Columns that a random sketch of a moment has besides `rank`."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of first and second moments."""


class MLorc(EachMatrix):
    """Each moment is kept as U (M, R), s (R,), Vᵀ (R, N). A step restores it to U·diag(s)·Vᵀ, makes AdamW's step with
    the whole moment, and compresses it anew by a randomised singular value decomposition:

    Q (M, K) = a basis of A·Ω; Û·diag(s)·Vᵀ = Qᵀ·A; U = Q·Û, cut to R, with a normal Ω (N, K) drawn for each step.

    A restored second moment may have negative entries. They become the mean of their absolute values. Left out: the
    power iteration that the authors' code adds to the decomposition, and their form of Lion.
    """

    name = "mlorc"
    section = Settings
    _settings: Settings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        (M, N), R = shape, min(self._settings.rank, *shape)
        factors = {"left": (M, R), "values": (R,), "right": (R, N)}
        return {f"{moment}_{kind}": size for moment in MOMENTS for kind, size in factors.items()}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """For both moments: restoring, the sketch and its projection, Householder's QR, and the product with Û."""
        R, K = min(self._settings.rank, rows, columns), self._sketched(rows, columns)
        each = 2 * rows * columns * (R + 2 * K) + householder_flops(rows, K) + 2 * rows * K * R
        return len(MOMENTS) * matrices * each

    def update(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor") -> "Tensor":
        beta1, beta2 = self._settings.betas
        mean_MN, square_MN = (_restored(state, moment) for moment in MOMENTS)
        mean_MN.lerp_(gradient_MN, 1 - beta1)
        square_MN = without_negatives(square_MN).mul_(beta2).addcmul_(gradient_MN, gradient_MN, value=1 - beta2)
        for moment, whole_MN in zip(MOMENTS, (mean_MN, square_MN), strict=True):
            self._compress(whole_MN, f"mlorc/{self.layer_of(matrix)}/{state['step']}/{moment}", state, moment)
        return adam_direction(mean_MN, square_MN, (beta1, beta2), self.config.eps, state["step"])

    def _compress(self, whole_MN: "Tensor", key: str, state: State, moment: str) -> None:
        from torch.linalg import qr, svd

        from comera_dist.optim.draws import normals

        M, N = whole_MN.shape
        sketch_NK = normals(key, (N, self._sketched(M, N))).to(whole_MN)
        Q_MK = qr(whole_MN @ sketch_NK).Q
        U, values, Vh = svd(Q_MK.mT @ whole_MN, full_matrices=False)
        R = len(state[f"{moment}_values"])
        state[f"{moment}_left"].copy_(Q_MK @ U[:, :R])
        state[f"{moment}_values"].copy_(values[:R])
        state[f"{moment}_right"].copy_(Vh[:R])

    def _sketched(self, rows: int, columns: int) -> int:
        return min(self._settings.rank + self._settings.oversampling, rows, columns)


def _restored(state: State, moment: str) -> "Tensor":
    restored_MN: Tensor = (state[f"{moment}_left"] * state[f"{moment}_values"]) @ state[f"{moment}_right"]
    return restored_MN


def without_negatives(square_MN: "Tensor") -> "Tensor":
    """The matrix with the mean of the absolute values of its negative entries in their places."""
    negative_MN = square_MN < 0
    return square_MN.where(~negative_MN, -square_MN[negative_MN].mean())
