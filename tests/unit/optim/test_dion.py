"""Dion against its algorithm in float64, with Gram–Schmidt, and against what it claims.

Shapes: a matrix (M, N), R the rank of its update.
"""

from math import ceil, sqrt

import numpy as np
import pytest
import torch
from each_matrix import NAME, Alone, gradients, seed_of

SHAPES = [(8, 5), (5, 8), (6, 6)]


def first_factor(shape):
    generator = torch.Generator().manual_seed(seed_of(f"dion/{NAME}"))
    return torch.randn(shape, generator=generator).double().numpy()


def gram_schmidt(columns):
    basis = []
    for column in columns.T:
        for _ in range(2):  # twice is exact to rounding
            column = column - sum(((known @ column) * known for known in basis), np.zeros_like(column))
        basis.append(column / np.linalg.norm(column))
    return np.stack(basis, axis=1)


def oracle(weight, gradients, rank_fraction, momentum, lr, weight_decay):
    """Algorithm 1 of the paper, entry by entry in float64; the update is 8 times the authors'."""
    M, N = weight.shape
    M_MN, V_NR = np.zeros((M, N)), first_factor((N, ceil(rank_fraction * min(M, N))))
    for G_MN in gradients:
        B_MN = M_MN + G_MN
        P_MR = gram_schmidt(B_MN @ V_NR)
        R_NR = B_MN.T @ P_MR
        M_MN = B_MN - (1 - momentum) * P_MR @ R_NR.T
        V_NR = R_NR / np.linalg.norm(R_NR, axis=0)
        weight = (1 - lr * weight_decay) * weight - lr * 8 * sqrt(M / N) * P_MR @ V_NR.T
    return weight, M_MN, V_NR


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank_fraction", [0.35, 1.0])
def test_steps_are_those_of_the_algorithm(shape, rank_fraction):
    alone = Alone("dion", shape, f"optim.dion.rank_fraction={rank_fraction}", "optim.dion.momentum=0.8")
    steps = gradients(shape, 5)
    expected = oracle(alone.weight.double().numpy(), [G.double().numpy() for G in steps], rank_fraction, 0.8, 0.01, 0.1)
    alone.make(steps, lr=0.01)
    state = alone.state
    found = (alone.weight, state["momentum_buffer"])
    for mine, other in zip(found, expected, strict=False):
        torch.testing.assert_close(mine.double(), torch.from_numpy(other), rtol=1e-4, atol=1e-5)
    # A column of the factor may have the other sign, as the column of P.
    torch.testing.assert_close(
        state["right_factor"].abs().double(), torch.from_numpy(np.abs(expected[2])), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_at_full_rank_repeated_steps_find_the_singular_vectors_as_muon_does(shape):
    alone = Alone("dion", shape, "optim.weight_decay=0")
    (G_MN,) = gradients(shape, 1)
    alone.make([G_MN] * 300, lr=0.0)
    U, _, Vh = torch.linalg.svd(G_MN, full_matrices=False)
    update = alone.update(G_MN)
    torch.testing.assert_close(update, 8 * sqrt(shape[0] / shape[1]) * U @ Vh, rtol=0, atol=0.05)


@pytest.mark.parametrize("rank_fraction", [0.2, 0.5, 1.0])
def test_the_norm_of_an_update_follows_from_its_rank(rank_fraction):
    """Its columns P are orthonormal and those of V have length 1: ‖P Vᵀ‖² = R."""
    alone = Alone("dion", (10, 20), f"optim.dion.rank_fraction={rank_fraction}")
    for G_MN in gradients((10, 20), 3):
        update, rank = alone.update(G_MN), round(10 * rank_fraction)
        assert update.norm().item() == pytest.approx(8 * sqrt(10 / 20) * sqrt(rank), rel=1e-5)
        assert torch.linalg.matrix_rank(update, rtol=1e-4) == rank


def test_the_momentum_keeps_everything_that_was_not_applied():
    """Error feedback: of B = P·Yᵀ + (the rest), P·Yᵀ decays by μ, and the rest stays whole."""
    alone = Alone("dion", (6, 9), "optim.dion.rank_fraction=0.3", "optim.dion.momentum=0.9")
    (G_MN,) = gradients((6, 9), 1)
    update, kept = alone.update(G_MN), alone.state["momentum_buffer"]
    P_MM = (basis := torch.linalg.svd(update).U[:, :2]) @ basis.T
    torch.testing.assert_close(kept, G_MN - 0.1 * P_MM @ G_MN)


def test_a_gradient_of_zeros_makes_no_number_that_is_not_finite():
    alone = Alone("dion", (4, 3))
    for G_MN in (torch.zeros(4, 3), *gradients((4, 3), 2)):
        assert alone.update(G_MN).isfinite().all()
