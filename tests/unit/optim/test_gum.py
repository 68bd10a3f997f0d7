"""GUM against its formulas, with singular value decompositions in place of Newton–Schulz iterations.

Shapes: a matrix (M, N), S the shorter side, L the longer one; R is the rank of the projection.
"""

import numpy as np
import torch
from each_matrix import seed_of
from several_matrices import DECAY, LR, matrices, optimizer_of, set_gradients, states, steps_of

from comera_dist.optim.draws import uniform
from comera_dist.optim.spectral_descent import QUINTIC, STEPS

Q, EVERY, RANK = 0.5, 2, 4
# Of a weight, which a step moves by 0.06. A momentum of full rank has the rank S − R; in the other R directions the
# iterations enlarge rounding errors by 3.4⁵.
ROUNDING = 1e-4
GUM = ["optim.kind=gum", f"optim.gum={{rank: {RANK}, update_every: {EVERY}, full_share: {Q}, momentum: 0.9}}"]


def is_sampled(layer, period):
    return seed_of(f"gum/{layer}/{period}") / 2**32 < Q


def near_orthogonal(matrix):
    """What five iterations of the quintic polynomial make of the singular values."""
    U, S, Vh = np.linalg.svd(matrix, full_matrices=False)
    S = S / np.linalg.norm(S)
    for _ in range(STEPS):
        S = QUINTIC[0] * S + QUINTIC[1] * S**3 + QUINTIC[2] * S**5
    return U @ np.diag(S) @ Vh


def slow_gum(layer, weight, gradients, beta=0.9):
    """The weights after each step: the formulas of arXiv 2510.17802, for a matrix that is not higher than wide."""
    S, L = weight.shape
    for k, gradient in enumerate(gradients):
        if k % EVERY == 0:
            basis, momentum = np.linalg.svd(gradient)[0][:, :RANK], 0.0
        if S > RANK and is_sampled(layer, k // EVERY):
            momentum = beta * momentum + (gradient - basis @ basis.T @ gradient) / Q
            direction = near_orthogonal(momentum)
        else:
            momentum = beta * momentum + basis.T @ gradient / (1 - Q)
            direction = basis @ near_orthogonal(momentum)
        weight = weight - LR * 0.2 * np.sqrt(L) * direction - LR * DECAY * weight
        yield weight


def test_steps_are_those_of_the_paper():
    steps, sampled = steps_of(*GUM), set()
    for name, first in steps.first.items():
        turn = np.transpose if first.shape[0] >= first.shape[1] else np.array
        layer = name.removesuffix(".weight")
        expected = slow_gum(layer, turn(first), [turn(gradient) for gradient in steps.gradients[name]])
        np.testing.assert_allclose(steps.weights[name], [turn(weight) for weight in expected], rtol=0, atol=ROUNDING)
        sampled |= {is_sampled(layer, period) for period in range(3) if min(first.shape) > RANK}
    assert sampled == {True, False}


def test_the_mean_of_the_estimates_is_the_gradient():
    method = optimizer_of(matrices(), *GUM).param_groups[0]["method"]
    gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(6, RANK, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    full, low = (method.estimated(gradient, basis, is_full) for is_full in (True, False))
    torch.testing.assert_close(Q * full + (1 - Q) * basis @ low, gradient)
    drawn = [uniform(f"gum/layers.{layer}.linear/{period}") for layer in range(40) for period in range(100)]
    assert abs(np.mean(np.array(drawn) < Q) - Q) < 5 * np.sqrt(Q * (1 - Q) / len(drawn))


def test_a_matrix_that_the_projection_leaves_whole_is_stepped_by_all_of_its_gradient():
    method = optimizer_of(matrices(), *GUM).param_groups[0]["method"]
    gradient, basis = torch.arange(27.0).view(3, 9), torch.eye(3)
    assert torch.equal(basis @ method.estimated(gradient, basis, is_full=False), gradient)


def test_only_sampled_matrices_keep_a_momentum_of_full_size():
    model, kept = matrices(), []
    optimizer = optimizer_of(model, *GUM)
    for step in range(6):
        set_gradients(model, step)
        optimizer.step()
        kept.append({name: tuple(s["momentum_buffer"].shape) for name, s in states(model, optimizer).items()})
    for step, shapes in enumerate(kept):
        for name, parameter in model.named_parameters():
            S, L = sorted(parameter.shape)
            is_full = S > RANK and is_sampled(name.removesuffix(".weight"), step // EVERY)
            assert shapes[name] == (S if is_full else min(S, RANK), L)
