"""Fira against its algorithm box, column by column.

Shapes: a matrix (M, N); R is the rank of the projection.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from several_matrices import DECAY, LR, matrices, optimizer_of, set_gradients, states, steps_of

FIRA = ["optim.kind=fira", "optim.fira={rank: 4, update_every: 2, scale: 0.5}"]


def slow_fira(weight, gradients, rank=4, every=2, alpha=0.5, betas=(0.9, 0.95), eps=1e-6, gamma=1.01):
    """The weights after each step: Algorithm 1 of arXiv 2410.01623, for a matrix that is not higher than wide."""
    last, moment, square = None, 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        if (t - 1) % every == 0:
            basis = np.linalg.svd(gradient)[0][:, :rank]
            basis = np.stack([u if max(u, key=abs) > 0 else -u for u in basis.T], axis=1)
        low = basis.T @ gradient
        moment = betas[0] * moment + (1 - betas[0]) * low
        square = betas[1] * square + (1 - betas[1]) * low**2
        adam = np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * moment / (np.sqrt(square) + eps)
        rest = gradient - basis @ low
        for column in range(gradient.shape[1]):
            rest[:, column] *= np.linalg.norm(adam[:, column]) / (np.linalg.norm(low[:, column]) + eps)
        if last is not None:
            rest *= gamma / max(np.linalg.norm(rest) / last, gamma)
        last = np.linalg.norm(rest)
        weight = weight - LR * alpha * (basis @ adam + rest) - LR * DECAY * weight
        yield weight


def test_steps_are_those_of_the_paper():
    steps = steps_of(*FIRA)
    for name, first in steps.first.items():
        turn = np.transpose if first.shape[0] >= first.shape[1] else np.array
        expected = list(slow_fira(turn(first), [turn(gradient) for gradient in steps.gradients[name]]))
        np.testing.assert_allclose(steps.weights[name], [turn(weight) for weight in expected], rtol=0, atol=1e-5)


def test_it_keeps_what_the_paper_counts():
    model = matrices([(6, 10), (10, 6), (3, 9)])
    optimizer = optimizer_of(model, *FIRA)
    set_gradients(model, 0)
    optimizer.step()
    kept = [sum(t.numel() for t in state.values() if torch.is_tensor(t)) for state in states(model, optimizer).values()]
    assert kept == [m * r + 2 * n * r + 1 for m, n, r in ((6, 10, 4), (6, 10, 4), (3, 9, 3))]


def test_the_rest_of_a_gradient_grows_by_a_hundredth_in_a_step_at_most():
    model = matrices([(6, 10)])
    optimizer, norms = optimizer_of(model, *FIRA), []
    for step in range(6):
        set_gradients(model, step)
        optimizer.step()
        norms.append(states(model, optimizer)["layers.0.linear.weight"]["limited_norm"].item())
    growth = [after / before for before, after in pairwise(norms)]
    assert max(growth) == pytest.approx(1.01, rel=1e-6)
    assert min(growth) < 1


def test_a_matrix_whose_first_gradient_is_zero_is_stepped_by_the_next():
    model = matrices([(6, 10)])
    optimizer, parameter = optimizer_of(model, *FIRA, "optim.weight_decay=0"), next(model.parameters())
    parameter.grad = torch.zeros_like(parameter)
    before = parameter.detach().clone()
    optimizer.step()
    assert torch.equal(parameter, before)
    set_gradients(model, 1)
    optimizer.step()
    basis = states(model, optimizer)["layers.0.linear.weight"]["projection"]
    change = parameter.detach() - before
    assert (change - basis @ (basis.T @ change)).norm() > 0.1 * change.norm()
