"""Newton–Schulz iterations: about U Vᵀ of matrices U S Vᵀ, by products alone.

Shapes: B matrices of R rows and C columns, R ≤ C.
"""

from itertools import pairwise

import torch
from torch import Tensor

from comera_dist.optim.polynomials import POLYNOMIALS

TINY = 1e-7  # keeps a norm of zero from dividing; as torch.optim.Muon


def newton_schulz(X_BRC: Tensor) -> Tensor:
    """About U Vᵀ of each matrix U S Vᵀ, R ≤ C. On a GPU in bf16, as torch.optim.Muon."""
    X = X_BRC / X_BRC.norm(dim=(1, 2), keepdim=True).clamp_min(TINY)
    X = X.bfloat16() if X.is_cuda else X
    R, C = X.shape[1:]
    # In bf16 small singular values drown in the rounding errors of A. Counted in products, C > 1.5 R is faster at once.
    iterated = at_once if X.dtype != torch.bfloat16 and C > 1.5 * R else one_by_one
    Y: Tensor = iterated(X).to(X_BRC.dtype)
    return Y


def one_by_one(X_BRC: Tensor) -> Tensor:
    """X after X ← aX + (bA + cA²)X with A = XXᵀ for each polynomial, from an X that is `scaled`."""
    X, A, square = scaled(X_BRC)
    (a, b, c), *others = POLYNOMIALS
    X = torch.baddbmm(X, b * A + c * square, X, beta=a)
    for a, b, c in others:
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X


def at_once(X_BRC: Tensor) -> Tensor:
    """The same as one product with the first X.

    With P = bA + cA² the next A is (a + P) A (a + P), and X after n iterations is kX + QX, k the product of their a. So
    only the first A and the last X are products of wide matrices; all others are products of R x R matrices.
    """
    X, A, square = scaled(X_BRC)
    k, b, c = POLYNOMIALS[0]
    P = Q = b * A + c * square
    for (a, _, _), (next_a, b, c) in pairwise(POLYNOMIALS):
        half = torch.baddbmm(A, P, A, beta=a)
        A = torch.baddbmm(half, half, P, beta=a)
        P = torch.baddbmm(A, A, A, beta=b, alpha=c)
        Q = torch.baddbmm(next_a * Q + k * P, P, Q)
        k *= next_a
    return torch.baddbmm(X, Q, X, beta=k)


def scaled(X_BRC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X over a bound of its singular values, with A = XXᵀ and A².

    The bound is the eighth root of Σσ⁸, which is the fourth root of ‖A²‖ (as Grishina et al. 2025, arXiv 2506.10935).
    The Frobenius norm is √R times the largest singular value if all are alike, and this bound R^⅛ times.
    """
    A = X_BRC @ X_BRC.mT
    square = A @ A
    bound = square.norm(dim=(1, 2), keepdim=True).clamp_min(TINY) ** 0.25
    return X_BRC / bound, A / bound**2, square / bound**4
