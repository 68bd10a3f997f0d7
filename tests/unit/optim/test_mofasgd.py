"""MoFaSGD against its algorithm with dense matrices in float64, and against what it claims.

Shapes: a matrix (M, N), R the rank of its momentum.
"""

from math import sqrt

import numpy as np
import pytest
import torch
from each_matrix import Alone, gradients

SHAPES = [(8, 5), (5, 8), (6, 6)]


def leading(matrix, rank):
    U, values, Vh = np.linalg.svd(matrix, full_matrices=False)
    return U[:, :rank], values[:rank], Vh[:rank]


def tangent(U, Vh, G):
    """The projection of G on the tangent space of matrices with these singular vectors, by the paper's formula."""
    P, Q = U @ U.T, Vh.T @ Vh
    return P @ G + G @ Q - P @ G @ Q


def oracle(weight, gradients, rank, momenta, lr, weight_decay):
    """The momentum as a dense matrix, which is cut to its rank at every step; `momenta` has β of each."""
    U, values, Vh = leading(gradients[0], rank)
    for step, (momentum, G) in enumerate(zip(momenta, gradients, strict=True)):
        if step:
            U, values, Vh = leading(momentum * (U * values) @ Vh + tangent(U, Vh, G), rank)
        weight = (1 - lr * weight_decay) * weight - lr * 0.2 * sqrt(max(weight.shape)) * U @ Vh
    return weight, (U * values) @ Vh


def momentum_of(state):
    return state["left_factor"] * state["singular_values"] @ state["right_factor"].T


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 4, 32])
@pytest.mark.parametrize(
    ("momentum", "warmup_steps", "momenta"),
    [(0.95, 4, [0.75, 0.8, 0.85, 0.9, 0.95, 0.95]), (0.8, 0, [0.8] * 6), (0.6, 4, [0.6] * 6)],
)
def test_steps_are_those_of_the_algorithm(shape, rank, momentum, warmup_steps, momenta):
    settings = (f"rank={rank}", f"momentum={momentum}", f"momentum_warmup_steps={warmup_steps}")
    alone = Alone("mofasgd", shape, *(f"optim.mofasgd.{setting}" for setting in settings))
    steps, rank = gradients(shape, 6), min(rank, *shape)
    expected = oracle(alone.weight.double().numpy(), [G.double().numpy() for G in steps], rank, momenta, 0.01, 0.1)
    alone.make(steps, lr=0.01)
    for mine, other in zip((alone.weight, momentum_of(alone.state)), expected, strict=True):
        torch.testing.assert_close(mine.double(), torch.from_numpy(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_at_full_rank_the_momentum_is_the_whole_one(shape):
    settings = "optim.mofasgd.momentum=0.9", "optim.mofasgd.momentum_warmup_steps=0"
    alone, expected = Alone("mofasgd", shape, *settings), torch.zeros(shape)
    for G in gradients(shape, 4):
        alone.make([G], lr=0.01)
        expected = 0.9 * expected + G
        torch.testing.assert_close(momentum_of(alone.state), expected, rtol=0, atol=1e-4)


def test_all_singular_values_of_an_update_are_alike():
    alone = Alone("mofasgd", (10, 20), "optim.mofasgd.rank=3")
    for G in gradients((10, 20), 4):
        values = torch.linalg.svdvals(alone.update(G))
        torch.testing.assert_close(values[:3], torch.full((3,), 0.2 * sqrt(20)), rtol=1e-4, atol=0)
        assert values[3] < 1e-5


def test_factors_stay_orthonormal():
    alone = Alone("mofasgd", (9, 7), "optim.mofasgd.rank=3")
    alone.make(gradients((9, 7), 100), lr=0.01)
    for kind in ("left_factor", "right_factor"):
        factor = alone.state[kind]
        torch.testing.assert_close(factor.T @ factor, torch.eye(3))


def test_a_gradient_of_lower_rank_makes_no_step_along_arbitrary_vectors():
    alone = Alone("mofasgd", (6, 8), "optim.mofasgd.rank=4")
    assert not alone.update(torch.zeros(6, 8)).any()
    alone = Alone("mofasgd", (6, 8), "optim.mofasgd.rank=4")
    G = torch.outer(torch.arange(6.0), torch.arange(8.0))
    assert torch.linalg.matrix_rank(alone.update(G), rtol=1e-4) == 1
