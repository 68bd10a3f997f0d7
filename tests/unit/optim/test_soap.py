"""SOAP against its algorithm in float64, and against what it claims.

Shapes: a matrix (M, N).
"""

import numpy as np
import pytest
import torch
from each_matrix import Alone, gradients

SHAPES = [(8, 5), (5, 8), (6, 6)]


class Side:
    """Shampoo's factor of one side with an eigenbasis, which is the identity for a side without one."""

    def __init__(self, outer, beta, basis):
        self.beta, self.factor, self.has_basis = beta, (1 - beta) * outer, basis is not None
        self.basis = basis if self.has_basis else np.eye(len(outer))

    def advance(self, outer):
        self.factor = self.beta * self.factor + (1 - self.beta) * outer

    def refresh(self):
        """Returns the order in which the old vectors now stand."""
        if not self.has_basis:
            return np.arange(len(self.basis))
        order = np.argsort(-np.diag(self.basis.T @ self.factor @ self.basis))
        self.basis = np.linalg.qr(self.factor @ self.basis[:, order])[0]
        return order


def oracle(weight, gradients, bases, betas, every, lr, weight_decay):
    """Algorithm 3 of the paper with the authors' first step and their sorting, in float64; `bases` are the first."""
    mean, square = np.zeros(weight.shape), np.zeros(weight.shape)
    outers = gradients[0] @ gradients[0].T, gradients[0].T @ gradients[0]
    left, right = (Side(outer, betas[1], basis) for outer, basis in zip(outers, bases, strict=True))
    weight = (1 - lr * weight_decay) * weight
    for step, G in enumerate(gradients[1:], start=1):
        weight = (1 - lr * weight_decay) * weight
        mean = betas[0] * mean + (1 - betas[0]) * G
        turned = left.basis.T @ G @ right.basis
        square = betas[1] * square + (1 - betas[1]) * turned**2
        mean_hat = left.basis.T @ mean @ right.basis / (1 - betas[0] ** step)
        direction = mean_hat / (np.sqrt(square / (1 - betas[1] ** step)) + 1e-8)
        weight = weight - lr * left.basis @ direction @ right.basis.T
        left.advance(G @ G.T)
        right.advance(G.T @ G)
        if step % every == 0:
            square = square[left.refresh()][:, right.refresh()]
    return weight


def first_bases(state):
    """The bases after the first step. They are not unique if a factor is singular, so the oracle takes those found."""
    return [state[f"{side}_basis"].double().numpy() if f"{side}_basis" in state else None for side in ("left", "right")]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("limit", [10_000, 6])
def test_steps_are_those_of_the_algorithm(shape, limit):
    """The bases are computed three times; with the limit a side of 8 keeps the identity."""
    settings = ["optim.soap.update_every=2", "optim.soap.betas=[0.9, 0.8]", f"optim.soap.max_precond_dim={limit}"]
    alone, steps = Alone("soap", shape, *settings), gradients(shape, 7)
    weight = alone.weight.double().numpy()
    alone.make(steps[:1], lr=0.01)
    bases = first_bases(alone.state)
    alone.make(steps[1:], lr=0.01)
    expected = oracle(weight, [G.double().numpy() for G in steps], bases, (0.9, 0.8), 2, 0.01, 0.1)
    torch.testing.assert_close(alone.weight.double(), torch.from_numpy(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_first_bases_are_eigenvectors_with_the_largest_eigenvalue_first(shape):
    alone, (G,) = Alone("soap", shape), gradients(shape, 1)
    assert not alone.update(G).any()
    for side, factor in (("left", G @ G.T), ("right", G.T @ G)):
        basis, expected = alone.state[f"{side}_basis"], torch.linalg.eigvalsh(factor).flip(0).diag()
        torch.testing.assert_close(basis.T @ basis, torch.eye(len(basis)))
        torch.testing.assert_close(basis.T @ factor @ basis, expected, rtol=1e-4, atol=1e-4)


def test_turned_gradients_make_turned_steps():
    """Adam's step depends on the axes, that of its eigenbases does not."""
    shape, turn = (6, 6), torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(3))).Q
    updates = {
        kind: [one.update(turn @ G if is_turned else G) for G in gradients(shape, 5)]
        for kind, one, is_turned in [("plain", Alone("soap", shape), False), ("turned", Alone("soap", shape), True)]
    }
    for plain, turned in zip(updates["plain"], updates["turned"], strict=True):
        torch.testing.assert_close(turned, turn @ plain, rtol=0, atol=1e-3)


def test_without_bases_it_is_adamw_from_the_second_gradient_on():
    alone = Alone("soap", (5, 4), "optim.soap.max_precond_dim=3", "optim.weight_decay=0")
    twin = torch.nn.Parameter(alone.weight)
    adamw, steps = torch.optim.AdamW([twin], lr=0.01, betas=(0.95, 0.95), weight_decay=0.0), gradients((5, 4), 6)
    for G in steps[1:]:
        twin.grad = G.clone()
        adamw.step()
    alone.make(steps, lr=0.01)
    torch.testing.assert_close(alone.weight, twin.detach())
    assert set(alone.method.shapes((5, 4))) == {"exp_avg", "exp_avg_sq"}


def test_bases_stay_orthonormal_and_find_the_eigenvectors():
    alone = Alone("soap", (5, 7), "optim.soap.update_every=1")
    alone.make(gradients((5, 7), 2) + gradients((5, 7), 1) * 60, lr=0.0)
    for side in ("left", "right"):
        factor, basis = alone.state[f"{side}_factor"], alone.state[f"{side}_basis"]
        torch.testing.assert_close(basis.T @ basis, torch.eye(len(basis)))
        found = basis.T @ factor @ basis
        assert (found - found.diag().diag()).abs().max() < 0.05 * found.max()
