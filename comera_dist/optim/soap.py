"""SOAP (Vyas et al. 2024, arXiv 2409.11321): Adam in the eigenbasis of Shampoo's two factors.

Shapes: a matrix (M, N).
"""

from typing import TYPE_CHECKING

from comera_dist.config.fields import Positive, Section
from comera_dist.config.optim_section import Decay
from comera_dist.optim.base import Shape, State
from comera_dist.optim.each_matrix import EachMatrix, adam_direction, householder_flops

if TYPE_CHECKING:
    from torch import Tensor, nn


SIDES = ("left", "right")


class Settings(Section):
    """Keys of optim.kind = soap. The defaults are those of the authors' code."""

    betas: tuple[Decay, Decay] = (0.95, 0.95)
    """Decay rates of first and second moments; the second one is also that of Shampoo's factors."""
    update_every: Positive = 10
    """Steps between two computations of the eigenbases."""
    max_precond_dim: Positive = 10_000
    """Longest side of a matrix that gets an eigenbasis; a longer side keeps the identity."""


class SOAP(EachMatrix):
    """With the gradient G, the factors L (M, M), R (N, N) and their eigenbases Q_L, Q_R:

    L ← β₂ L + (1 − β₂) G·Gᵀ and R ← β₂ R + (1 − β₂) Gᵀ·G after each step. Every `update_every` steps Q_L becomes the
    basis of a QR decomposition of L·Q_L, and Q_R that of R·Q_R. The update is Q_L·A·Q_Rᵀ, where A is Adam's step. Its
    first moment is Q_Lᵀ·(mean of G)·Q_R, its second moment the mean of squares of Q_Lᵀ·G·Q_R.

    The first gradient only gives the first eigenbases, by an eigendecomposition: the weight decays and does not step.
    If M ≠ N, one factor is then singular and some of its eigenvectors are arbitrary. So runs whose first gradients are
    rounded differently differ. As in the authors' code, eigenvectors are sorted by the eigenvalue that they had, and
    second moments move with them. Left out: their normalised updates, merged dimensions, and the paper's forms with
    one side or with Adafactor's moments.
    """

    name = "soap"
    section = Settings
    _settings: Settings

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        sides = zip(SIDES, shape, strict=True)
        of_sides = [(side, (size, size)) for side, size in sides if size <= self._settings.max_precond_dim]
        bases = {f"{side}{kind}": square for side, square in of_sides for kind in ("_factor", "_basis")}
        return {"exp_avg": shape, "exp_avg_sq": shape, **bases}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """For each side with a basis three turns and its factor, and at a refresh a product and Householder's QR."""
        sides = [size for size in (rows, columns) if size <= self._settings.max_precond_dim]
        each_step = sum(8 * rows * columns * size for size in sides)
        refresh = sum(2 * size**3 + householder_flops(size, size) for size in sides)
        return matrices * (each_step + refresh // self._settings.update_every)

    def update(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor") -> "Tensor":
        steps, (beta1, beta2) = state["step"] - 1, self._settings.betas
        if not steps:
            self._advance_factors(gradient_MN, state)
            _set_bases(state)
            return gradient_MN.new_zeros(gradient_MN.shape)
        turned_MN = _turned(gradient_MN, state)
        mean_MN = state["exp_avg"].lerp_(gradient_MN, 1 - beta1)
        square_MN = state["exp_avg_sq"].mul_(beta2).addcmul_(turned_MN, turned_MN, value=1 - beta2)
        step_MN = adam_direction(_turned(mean_MN, state), square_MN, (beta1, beta2), self.config.eps, steps)
        update_MN = _turned_back(step_MN, state)
        self._advance_factors(gradient_MN, state)
        if steps % self._settings.update_every == 0:
            _refresh_bases(state)
        return update_MN

    def _advance_factors(self, gradient_MN: "Tensor", state: State) -> None:
        news = {"left": gradient_MN @ gradient_MN.mT, "right": gradient_MN.mT @ gradient_MN}
        for _, side in _sides(state):
            state[f"{side}_factor"].lerp_(news[side], 1 - self._settings.betas[1])


def _sides(state: State) -> list[tuple[int, str]]:
    """The sides that have an eigenbasis, with their dimension."""
    return [(dim, side) for dim, side in enumerate(SIDES) if f"{side}_basis" in state]


def _turned(X_MN: "Tensor", state: State) -> "Tensor":
    """Q_Lᵀ·X·Q_R."""
    X_MN = state["left_basis"].mT @ X_MN if "left_basis" in state else X_MN
    return X_MN @ state["right_basis"] if "right_basis" in state else X_MN


def _turned_back(X_MN: "Tensor", state: State) -> "Tensor":
    """Q_L·X·Q_Rᵀ."""
    X_MN = state["left_basis"] @ X_MN if "left_basis" in state else X_MN
    return X_MN @ state["right_basis"].mT if "right_basis" in state else X_MN


def _set_bases(state: State) -> None:
    """Eigenvectors of the factors, of the largest eigenvalue first."""
    from torch.linalg import eigh

    for _, side in _sides(state):
        state[f"{side}_basis"].copy_(eigh(state[f"{side}_factor"]).eigenvectors.flip(1))


def _refresh_bases(state: State) -> None:
    """One step of power iteration, from the bases in the order of their eigenvalues."""
    from torch.linalg import qr

    for dim, side in _sides(state):
        basis = state[f"{side}_basis"]
        product = state[f"{side}_factor"] @ basis
        order = (basis * product).sum(dim=0).argsort(descending=True, stable=True)
        basis.copy_(qr(product[:, order]).Q)
        state["exp_avg_sq"].copy_(state["exp_avg_sq"].index_select(dim, order))
