"""The norm of errors, the layers of a rank, and the choice of ranks, each against its definition."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from comera_dist.compress.candidate import Candidate, is_factors
from comera_dist.compress.moments import Moments, measured_moments
from comera_dist.compress.ranks import choose_ranks
from comera_dist.compress.whitening import DAMPING, Roots
from comera_dist.formats.block_train import plan_blocks
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.tensor_train.format import LOW_RANK, LowRankOptions
from comera_dist.formats.tensor_train.shapes import plan_tt

INPUTS, OUTPUTS = 12, 10
PLANS = {
    "low rank": LOW_RANK.plan_linear(INPUTS, OUTPUTS, LowRankOptions(rank=3)),
    "blocks": plan_blocks(INPUTS, OUTPUTS, 2, 2),
    "padded blocks": plan_blocks(INPUTS, OUTPUTS, 1, 4),
}


def correlated(size: int, seed: int) -> torch.Tensor:
    """The second moment (size, size) of vectors with lengths from 1 to 0.1 along directions that are not the axes."""
    directions, _ = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)))
    return directions @ torch.logspace(0, -2, size).diag() @ directions.T


@pytest.fixture(params=PLANS)
def candidate(request) -> Candidate:
    torch.manual_seed(1)
    moments = Moments(correlated(INPUTS, 2), correlated(OUTPUTS, 3))
    return Candidate(nn.Linear(INPUTS, OUTPUTS), PLANS[request.param], moments)


def in_blocks(matrix: torch.Tensor, blocks: int, size: int) -> torch.Tensor:
    """The matrix without what lies outside of its diagonal blocks, damped."""
    matrix = matrix.double() + DAMPING * matrix.diagonal().double().mean() * torch.eye(len(matrix))
    block = torch.arange(len(matrix)) // size
    return torch.where(block[:, None] == block, matrix, 0.0)


def error(candidate: Candidate, weight: torch.Tensor) -> float:
    """tr(G ΔW C ΔWᵀ)."""
    (n, c, _), (m, _, b) = candidate.plan.unfoldings.values()
    C, G = in_blocks(candidate.moments.inputs_NN, n, c), in_blocks(candidate.moments.gradients_MM, m, b)
    change = weight.double() - candidate.layer.weight.double()
    return float(torch.trace(G @ change @ C @ change.T).detach())


@pytest.mark.parametrize(("blocks", "size"), [(1, 12), (3, 4), (4, 4)])
def test_roots_are_those_of_the_blocks(blocks, size):
    moments = correlated(12, 0)
    roots = Roots.of(moments, blocks, size)
    wanted = torch.eye(blocks * size, dtype=torch.float64)
    wanted[:12, :12] = in_blocks(moments, blocks, size)
    torch.testing.assert_close(torch.block_diag(*(roots.root @ roots.root)), wanted)
    torch.testing.assert_close(roots.root @ roots.inverse, torch.eye(size).double().expand(blocks, -1, -1))


def test_a_rank_leaves_the_error_of_the_gains_that_it_has_not(candidate):
    for rank in range(1, len(candidate.gains) + 1):
        plan, layer = candidate.built(rank)
        assert plan.bonds == (rank,)
        assert torch.equal(layer.bias, candidate.layer.bias)
        left, scale = sum(candidate.gains[rank:]), sum(candidate.gains)
        assert error(candidate, layer.to_dense()) == pytest.approx(left, rel=1e-3, abs=1e-5 * scale)
    torch.testing.assert_close(layer.to_dense(), candidate.layer.weight, rtol=1e-3, atol=1e-4)


def test_no_other_weight_of_the_rank_is_closer(candidate):
    """Descent from the weight that was found finds nothing better, and the SVD of the weight itself is worse."""
    plan, layer = candidate.built(2)
    found = error(candidate, layer.to_dense())
    plain = plan.from_dense(candidate.layer.weight.detach())
    assert error(candidate, plain.to_dense()) > 1.05 * found
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        moved = plan.from_dense(layer.to_dense())
        with torch.no_grad():
            for core in (moved.core_1, moved.core_2):
                core += 0.01 * core.std() * torch.randn(core.shape, generator=generator)
        assert error(candidate, moved.to_dense()) > found * (1 - 1e-4)


def test_rank_zero_is_a_removed_layer_that_keeps_its_bias(candidate):
    plan, layer = candidate.built(0)
    assert isinstance(plan, RemovedPlan)
    assert torch.equal(layer(torch.ones(1, INPUTS))[0], candidate.layer.bias)


def test_numbers_are_those_of_the_plan_up_to_the_dense_weight(candidate):
    for rank in range(1, len(candidate.gains) + 1):
        stored = candidate.plan.with_bonds([rank]).parameters
        assert candidate.numbers(rank) == min(stored, INPUTS * OUTPUTS)


def test_only_two_factors_with_one_bond_are_candidates():
    assert all(map(is_factors, PLANS.values()))
    assert not is_factors(plan_tt(64, 64, order=2, rank=2))
    assert not is_factors(RemovedPlan(4, 4))


@dataclass
class Priced:
    """A candidate of made-up gains."""

    gains: list[float]
    of_a_rank: int
    dense_numbers: int

    def numbers(self, rank: int) -> int:
        return min(rank * self.of_a_rank, self.dense_numbers)

    def error(self, rank: int | None) -> float:
        return 0.0 if rank is None else sum(self.gains[rank:])


def test_the_choice_is_the_best_but_for_what_the_last_rank_leaves():
    generator = torch.Generator().manual_seed(0)
    for numbers in range(5, 60, 3):
        layers = {
            name: Priced(torch.rand(4, generator=generator).cumsum(0).flip(0).tolist(), price, 4 * price - 1)
            for name, price in (("a", 3), ("b", 5), ("c", 4))
        }
        ranks = choose_ranks(layers, numbers)
        spent = sum(layers[name].numbers(4 if rank is None else rank) for name, rank in ranks.items())
        assert spent <= numbers
        best = min(
            sum(layer.error(rank) for layer, rank in zip(layers.values(), tried, strict=True))
            for tried in itertools.product(range(5), repeat=3)
            if sum(layer.numbers(rank) for layer, rank in zip(layers.values(), tried, strict=True)) <= numbers
        )
        chosen = sum(layers[name].error(rank) for name, rank in ranks.items())
        assert best - 1e-6 <= chosen <= best + max(layer.gains[0] for layer in layers.values())


def test_a_layer_that_affords_its_dense_numbers_stays_dense():
    layers = {"a": Priced([2.0, 1.0, 0.5], 4, 10), "b": Priced([0.1, 0.1, 0.1], 4, 10)}
    assert choose_ranks(layers, 10) == {"a": None, "b": 0}
    assert choose_ranks(layers, 14) == {"a": None, "b": 1}


class Model(nn.Module):
    """The summed squares of two layers' outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2, bias=False)

    def forward(self, x_BSN: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x_BSN))).square().sum()


def test_moments_are_sums_over_tokens():
    torch.manual_seed(0)
    model, batches = Model(), [(torch.randn(2, 5, 4),), (torch.randn(1, 5, 4),)]
    found = measured_moments(model, {"second": model.second, "first": model.first}, batches, torch.device("cpu"))
    inputs, gradients = torch.zeros(3, 3), torch.zeros(3, 3)
    for x in torch.cat([batch.flatten(0, 1) for (batch,) in batches]):
        written = model.first(x)
        hidden = torch.tanh(written)
        (g,) = torch.autograd.grad(model.second(hidden).square().sum(), written)
        inputs += hidden.detach()[:, None] * hidden.detach()
        gradients += g[:, None] * g
    torch.testing.assert_close(found["second"].inputs_NN, inputs)
    torch.testing.assert_close(found["first"].gradients_MM, gradients)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.first._forward_hooks
