"""MLorc against its algorithm in float64, and against what it claims.

Shapes: a matrix (M, N), R the rank of its moments.
"""

import numpy as np
import pytest
import torch
from each_matrix import NAME, Alone, gradients, seed_of

from comera_dist.optim.mlorc import without_negatives

SHAPES = [(8, 5), (5, 8), (6, 6)]


def sketched(A, rank, columns, key):
    """A randomised singular value decomposition of rank `rank` (Halko, Martinsson and Tropp 2011), restored."""
    generator = torch.Generator().manual_seed(seed_of(key))
    sketch = torch.randn((A.shape[1], columns), generator=generator).double().numpy()
    basis = np.linalg.svd(A @ sketch, full_matrices=False)[0]
    U, values, Vh = np.linalg.svd(basis @ (basis.T @ A), full_matrices=False)
    return U[:, :rank] * values[:rank] @ Vh[:rank]


def oracle(weight, gradients, rank, columns, lr, weight_decay, betas=(0.9, 0.999)):
    """Algorithm 1 of the paper with dense moments, in float64."""
    mean, square = np.zeros(weight.shape), np.zeros(weight.shape)
    for step, G in enumerate(gradients, start=1):
        negative = square < 0
        square[negative] = np.abs(square[negative]).mean() if negative.any() else 0
        mean = betas[0] * mean + (1 - betas[0]) * G
        square = betas[1] * square + (1 - betas[1]) * G**2
        direction = mean / (1 - betas[0] ** step) / (np.sqrt(square / (1 - betas[1] ** step)) + 1e-8)
        weight = (1 - lr * weight_decay) * weight - lr * direction
        mean = sketched(mean, rank, columns, f"mlorc/{NAME}/{step}/exp_avg")
        square = sketched(square, rank, columns, f"mlorc/{NAME}/{step}/exp_avg_sq")
    return weight, mean, square


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("rank", "oversampling", "columns"), [(2, 0, 2), (2, 1, 3), (9, 3, 5)])
def test_steps_are_those_of_the_algorithm(shape, rank, oversampling, columns):
    settings = [f"optim.mlorc.rank={rank}", f"optim.mlorc.oversampling={oversampling}"]
    alone, steps = Alone("mlorc", shape, *settings), gradients(shape, 6)
    rank, columns = min(rank, *shape), min(rank + oversampling, *shape)
    expected = oracle(alone.weight.double().numpy(), [G.double().numpy() for G in steps], rank, columns, 0.01, 0.1)
    alone.make(steps, lr=0.01)
    state = alone.state
    moments = [
        state[f"{kind}_left"] * state[f"{kind}_values"] @ state[f"{kind}_right"] for kind in ("exp_avg", "exp_avg_sq")
    ]
    for mine, other in zip([alone.weight, *moments], expected, strict=True):
        torch.testing.assert_close(mine.double(), torch.from_numpy(other), rtol=1e-3, atol=1e-4)


def test_moments_of_rank_one_lose_nothing():
    """Gradients a_t · u·vᵀ have moments of rank 1, and then it is AdamW."""
    generator = torch.Generator().manual_seed(2)
    u, v = torch.randn(6, 1, generator=generator), torch.randn(1, 9, generator=generator)
    alone = Alone("mlorc", (6, 9), "optim.mlorc.rank=1")
    twin = torch.nn.Parameter(alone.weight)
    adamw = torch.optim.AdamW([twin], lr=0.01, betas=(0.9, 0.999), weight_decay=0.1)
    steps = [factor * u @ v for factor in (1.0, -0.5, 2.0, 0.3, 1.5)]
    for G in steps:
        twin.grad = G.clone()
        adamw.step()
    alone.make(steps, lr=0.01)
    torch.testing.assert_close(alone.weight, twin.detach(), rtol=0, atol=1e-5)


def test_negative_entries_of_a_restored_second_moment_become_their_mean():
    found = without_negatives(torch.tensor([[1.0, -2.0], [0.0, -4.0]]))
    assert found.tolist() == [[1.0, 3.0], [0.0, 3.0]]
    assert without_negatives(torch.ones(2, 2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_sketch_follows_from_the_name_and_the_step():
    """Not from the generator of the process."""
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        alone = Alone("mlorc", (8, 8), "optim.mlorc.rank=2")
        alone.make(gradients((8, 8), 3), lr=0.01)
        states.append(alone.state)
    assert all(torch.equal(states[0][kind], states[1][kind]) for kind in alone.method.shapes((8, 8)))
