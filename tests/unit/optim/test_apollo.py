"""APOLLO and APOLLO-Mini against their algorithm box, column by column.

Shapes: a matrix (M, N), S the shorter side; R is the rank of the projection.
"""

import numpy as np
import pytest
import torch
from each_matrix import seed_of
from several_matrices import DECAY, LR, as_numpy, matrices, optimizer_of, set_gradients, steps_of

EVERY = 2
SETTINGS = {
    "apollo": ["optim.kind=apollo", f"optim.apollo={{rank: 4, update_every: {EVERY}, scale: 0.5}}"],
    "apollo_mini": ["optim.kind=apollo_mini", f"optim.apollo_mini.update_every={EVERY}"],
}


def sketch(kind, layer, draw, rank, side):
    """P (R, S) of the distribution N(0, 1/R)."""
    generator = torch.Generator().manual_seed(seed_of(f"{kind}/{layer}/{draw}"))
    return torch.randn(rank, side, generator=generator).double().numpy() / np.sqrt(rank)


def slow_apollo(kind, layer, weight, gradients, betas=(0.9, 0.95), eps=1e-6, gamma=1.01):
    """The weights after each step: Algorithm 1 of arXiv 2412.05270, for a matrix that is not higher than wide."""
    last, moment, square = None, 0.0, 0.0
    rank, alpha = (min(4, len(weight)), 0.5) if kind == "apollo" else (1, 128**0.5)
    for t, gradient in enumerate(gradients, start=1):
        low = sketch(kind, layer, (t - 1) // EVERY, rank, len(weight)) @ gradient
        moment = betas[0] * moment + (1 - betas[0]) * low
        square = betas[1] * square + (1 - betas[1]) * low**2
        adam = (moment / (1 - betas[0] ** t)) / (np.sqrt(square) + eps) * np.sqrt(1 - betas[1] ** t)
        scaled = np.zeros_like(gradient)
        for j in range(gradient.shape[1]):
            part = np.s_[:, j] if kind == "apollo" else np.s_[:, :]
            scaled[:, j] = np.linalg.norm(adam[part]) / (np.linalg.norm(low[part]) + eps) * gradient[:, j]
        if last is not None and np.linalg.norm(scaled) / last > gamma:
            scaled *= gamma * last / np.linalg.norm(scaled)
        last = np.linalg.norm(scaled)
        weight = weight - LR * alpha * scaled - LR * DECAY * weight
        yield weight


@pytest.mark.parametrize("kind", SETTINGS)
def test_steps_are_those_of_the_paper(kind):
    steps = steps_of(*SETTINGS[kind])
    for name, first in steps.first.items():
        turn = np.transpose if first.shape[0] >= first.shape[1] else np.array
        expected = slow_apollo(
            kind, name.removesuffix(".weight"), turn(first), [turn(gradient) for gradient in steps.gradients[name]]
        )
        np.testing.assert_allclose(steps.weights[name], [turn(weight) for weight in expected], rtol=0, atol=2e-5)


def test_sketches_keep_squares_on_average():
    """The mean of PᵀP over draws is the identity, up to the deviation √(2 / (R · draws)) of a mean of squares."""
    model = matrices([(6, 10)])
    optimizer, parameter = optimizer_of(model, *SETTINGS["apollo"]), next(model.parameters())
    set_gradients(model, 0)
    optimizer.step()
    method, state = optimizer.param_groups[0]["method"], optimizer.state[parameter]
    products = []
    for draw in range(2000):
        P = method.projection(parameter, {**state, "step": 1 + draw * EVERY}, len(parameter))
        products.append(P.T @ P)
    mean = torch.stack(products).mean(0)
    torch.testing.assert_close(mean, torch.eye(6), rtol=0, atol=5 * (2 / (4 * 2000)) ** 0.5)


def test_a_sketch_lasts_for_its_period_and_is_that_of_the_name_alone():
    def weights(names):
        model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList()})
        for name in names:
            linear = torch.nn.Linear(10, 6, bias=False)
            torch.nn.init.constant_(linear.weight, 0.5)
            model["layers"].append(torch.nn.ModuleDict({name: linear}))
        optimizer = optimizer_of(model, *SETTINGS["apollo"])
        for step in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.linspace(-1, 2 + step, 60).view(6, 10)
            optimizer.step()
        return as_numpy(model)

    both, one = weights(["a", "b"]), weights(["a"])
    assert np.array_equal(both["layers.0.a.weight"], one["layers.0.a.weight"])
    assert not np.array_equal(both["layers.0.a.weight"], both["layers.1.b.weight"])


@pytest.mark.parametrize("kind", SETTINGS)
def test_it_moves_along_the_gradient_and_keeps_no_projection(kind):
    """APOLLO along each column of the gradient, APOLLO-Mini along the whole of it."""
    model = matrices([(6, 10)])
    optimizer, parameter = optimizer_of(model, *SETTINGS[kind], "optim.weight_decay=0"), next(model.parameters())
    set_gradients(model, 0)
    before = parameter.detach().clone()
    optimizer.step()
    dims = 0 if kind == "apollo" else (0, 1)
    change, gradient = before - parameter.detach(), parameter.grad
    cosines = (change * gradient).sum(dims) / (change.norm(dim=dims) * gradient.norm(dim=dims))
    assert cosines.min() > 1 - 1e-5
    kept = [t.numel() for t in optimizer.state[parameter].values() if torch.is_tensor(t)]
    assert kept == ([40, 40, 1] if kind == "apollo" else [10, 10, 1])
