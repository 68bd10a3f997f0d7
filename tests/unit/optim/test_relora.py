"""ReLoRA against adapters that stand in the product themselves, trained by torch's Adam.

Shapes: a matrix (M, N) with adapters A (R, N) and B (M, R).
"""

import numpy as np
import pytest
import torch
from each_matrix import seed_of
from several_matrices import DECAY, LR, matrices, optimizer_of, set_gradients, states, steps_of
from support import TINY

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.optim.relora import prune

RANK, ALPHA, FULL, EVERY, WARMUP, PRUNED = 4, 6.0, 2, 3, 1, 0.7
SETTINGS = f"rank: {RANK}, alpha: {ALPHA}, restart_every: {EVERY}, warmup_steps: {WARMUP}, pruned: {PRUNED}"
RELORA = ["optim.kind=relora", f"optim.relora={{{SETTINGS}, full_rank_steps: {FULL}}}"]
STEPS = FULL + 2 * EVERY + 1  # up to the first step of the third adapters


def adam(parameters):
    return torch.optim.Adam(parameters, LR, betas=(0.9, 0.95), eps=1e-6)


def slow_relora(layer, weight, gradients):
    """The weights after each step; all in float64. The loss is the sum of gradient · W, so its gradient is given."""
    weight, scale = torch.tensor(weight), ALPHA / RANK
    dense = weight.clone().requires_grad_()
    optimizer = adam([dense])
    for gradient in gradients[:FULL]:
        before, dense.grad = dense.detach().clone(), torch.tensor(gradient)
        optimizer.step()
        weight = weight * (1 - LR * DECAY) + dense.detach() - before
        yield weight.numpy()
    (M, N), R = weight.shape, min(RANK, *weight.shape)
    A, B = (
        torch.zeros(R, N, dtype=torch.float64, requires_grad=True),
        torch.zeros(M, R, dtype=torch.float64, requires_grad=True),
    )
    optimizer = adam([A, B])
    for k, gradient in enumerate(gradients[FULL:]):
        if k % EVERY == 0:
            drawn = torch.rand(R, N, generator=torch.Generator().manual_seed(seed_of(f"relora/{layer}/{k // EVERY}")))
            with torch.no_grad():
                B.zero_()
                A.copy_((2 * drawn.double() - 1) / np.sqrt(N))
            for state in optimizer.state.values():
                slow_prune(state["exp_avg"], state["exp_avg_sq"])
        optimizer.param_groups[0]["lr"] = LR * min(1, (k % EVERY + 1) / (WARMUP + 1))
        before = scale * (B @ A).detach()
        optimizer.zero_grad()
        (torch.tensor(gradient) * scale * (B @ A)).sum().backward()
        optimizer.step()
        weight = weight * (1 - LR * DECAY) + scale * (B @ A).detach() - before
        yield weight.numpy()


def slow_prune(mean, square):
    """Sorts instead of selecting."""
    entries = sorted(mean.flatten().tolist(), key=abs)
    limit = abs(entries[int(PRUNED * len(entries)) - 1])
    square[mean.abs() <= limit] = 0
    mean[mean.abs() <= limit] = 0


def test_steps_are_those_of_adapters_in_the_model():
    steps = steps_of(*RELORA, count=STEPS)
    for name, first in steps.first.items():
        expected = list(slow_relora(name.removesuffix(".weight"), first, steps.gradients[name]))
        np.testing.assert_allclose(steps.weights[name], expected, rtol=0, atol=5e-6)


def test_adapters_move_a_matrix_by_more_than_their_rank_over_several_restarts():
    steps = steps_of(*RELORA, "optim.weight_decay=0", count=FULL + 2 * EVERY)
    (name, weights), rank = next(iter(steps.weights.items())), np.linalg.matrix_rank
    begin, first, second = weights[FULL - 1], weights[FULL + EVERY - 1], weights[FULL + 2 * EVERY - 1]
    assert (rank(first - begin, tol=1e-5), rank(second - begin, tol=1e-5)) == (RANK, 6), name


@pytest.mark.parametrize("full", [0, 2])
def test_moments_of_full_rank_end_with_the_first_adapters(full):
    model, kept = matrices([(6, 10)]), []
    optimizer = optimizer_of(model, "optim.kind=relora", f"optim.relora={{{SETTINGS}, full_rank_steps: {full}}}")
    for step in range(full + 1):
        set_gradients(model, step)
        optimizer.step()
        (state,) = states(model, optimizer).values()
        kept.append({kind: tuple(tensor.shape) for kind, tensor in state.items() if kind != "step"})
    adapters = {f"A{moment}": (4, 10) for moment in ("", "_exp_avg", "_exp_avg_sq")}
    adapters |= {f"B{moment}": (6, 4) for moment in ("", "_exp_avg", "_exp_avg_sq")}
    assert kept == [{"exp_avg": (6, 10), "exp_avg_sq": (6, 10)}] * full + [adapters]
    method, matrix = optimizer.param_groups[0]["method"], next(model.parameters())
    declared = [method.shapes_after(step, matrix, (6, 10)) for step in range(full + 2)]
    assert declared == [kept[0], *kept]


@pytest.mark.parametrize(
    "length", [["train.steps=10"], ["train.steps=null", "train.batch_tokens=64", "train.tokens=640"]]
)
def test_a_run_that_ends_at_full_rank_is_refused(length):
    with pytest.raises(ConfigError, match="full_rank_steps = 10 leaves no step with adapters within 10 steps;"):
        read_config(None, [*TINY, "optim.kind=relora", "optim.relora.full_rank_steps=10", *length])


def test_the_smallest_entries_are_pruned_and_equal_ones_with_them():
    mean, square = torch.tensor([[3.0, -1.0], [-4.0, 1.0], [0.5, 2.0]]), torch.arange(1.0, 7.0).view(3, 2)
    prune(mean, square, 0.34)
    assert mean.tolist() == [[3.0, 0.0], [-4.0, 0.0], [0.0, 2.0]]
    assert square.tolist() == [[1.0, 0.0], [3.0, 0.0], [0.0, 6.0]]
    prune(mean, square, 0.1)
    assert mean.count_nonzero() == 3
