"""Balanced canonical form computes the same weight, orders indices by what they hold, and moves gradients with it."""

import pytest
import torch

from comera_dist.formats.tensor_train.canonical import alive_ranks, balance, revived
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, plan_tt

SHAPES = [
    plan_tt(24, 30, 1, 7),
    TTShape(24, 30, (6, 4), (5, 6), (1, 5, 7, 6, 1)),
    TTShape(45, 105, (5, 3, 3), (3, 5, 7), (1, 4, 7, 9, 8, 5, 1)),
    TTShape(24, 30, (6, 4), (5, 6), (1, 6, 24, 6, 1)),
    TTMShape(61, 19, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1)),
]


def train(shape, seed=0):
    """A train of doubles with gates of both signs."""
    generator = torch.Generator().manual_seed(seed)
    kind = TTMEmbedding if isinstance(shape, TTMShape) else TTLinear
    layer = kind(shape, generator=generator, dtype=torch.float64)
    for gate in layer.gates:
        gate.data = torch.randn(gate.shape, dtype=torch.float64, generator=generator)
    return layer


def put(layer, cores):
    for parameter, core in zip(layer.cores, cores, strict=True):
        parameter.data = core
    for gate in layer.gates:
        gate.data.fill_(1.0)
    return layer


def left_of(cores, bond):
    """What the cores to the left of a bond span: (all their modes, rank of the bond)."""
    rows = torch.ones(1, 1, dtype=torch.float64)
    for core in cores[:bond]:
        rows = torch.tensordot(rows, core.detach().flatten(1, -2), 1).flatten(0, 1)
    return rows


def unfolded(cores, bond):
    """The whole tensor as a matrix: modes left of the bond, modes right of it."""
    return left_of(cores, len(cores)).reshape(len(left_of(cores, bond)), -1)


def gradients(layer):
    """Of a smooth function of the dense weight, by core."""
    for parameter in layer.parameters():
        parameter.grad = None
    weight = layer.to_dense()
    target = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (weight - target).square().sum().backward()
    return [core.grad for core in layer.cores]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weight_and_shapes_stay(shape):
    layer = train(shape)
    expected = layer.to_dense().detach()
    cores, _ = balance(layer.cores, layer.gates)
    assert [c.shape for c in cores] == [c.shape for c in layer.cores]
    torch.testing.assert_close(put(layer, cores).to_dense().detach(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_side_of_a_bond_holds_half_of_every_singular_value(shape):
    layer = train(shape)
    values = {b: torch.linalg.svdvals(unfolded(layer.gated_cores(), b)) for b in range(1, len(layer.cores))}
    cores, _ = balance(layer.cores, layer.gates)
    for bond, expected in values.items():
        left = left_of(cores, bond)
        torch.testing.assert_close(left.T @ left, torch.diag(expected[: left.shape[1]]), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cutting_the_last_index_changes_the_weight_by_its_singular_value(shape):
    layer = train(shape)
    cores, _ = balance(layer.cores, layer.gates)
    for bond in range(1, len(cores)):
        whole = unfolded(cores, bond)
        cut = list(cores)
        cut[bond - 1], cut[bond] = cores[bond - 1][..., :-1], cores[bond][:-1]
        least = torch.linalg.svdvals(whole)[cores[bond].shape[0] - 1]
        torch.testing.assert_close((whole - unfolded(cut, bond)).norm(), least, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_the_new_cores(shape):
    layer = train(shape)
    old = gradients(layer)
    cores, gauge = balance(layer.cores, layer.gates)
    for k, expected in enumerate(gradients(put(layer, cores))):
        torch.testing.assert_close(gauge.gradient(k, old[k]), expected, rtol=1e-6, atol=1e-8)


def test_squares_of_a_single_entry_are_exact():
    layer = train(SHAPES[2])
    _, gauge = balance(layer.cores, layer.gates)
    for k, core in enumerate(layer.cores):
        one = torch.zeros_like(core)
        one.view(-1)[core.numel() // 2] = 1.7
        torch.testing.assert_close(gauge.square(k, one.square()), gauge.gradient(k, one).square())


def test_directions_that_hold_nothing_become_zeros():
    layer = train(SHAPES[1])
    layer.gates[1].data[[1, 4, 6]] = 0.0
    expected = layer.to_dense().detach()
    cores, gauge = balance(layer.cores, layer.gates)
    assert cores[1].detach()[..., -3:].abs().max() < 1e-6
    assert cores[2].detach()[-3:].abs().max() == 0.0
    moments = [gauge.gradient(k, torch.ones_like(core)) for k, core in enumerate(layer.cores)]
    assert all(moment.isfinite().all() for moment in moments)
    torch.testing.assert_close(put(layer, cores).to_dense().detach(), expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def kill(layer, what):
    if what == "half of the gates":
        for gate in layer.gates:
            gate[: len(gate) // 2 + 1] = 0.0
    if what == "a bond":
        layer.gates[0].zero_()
    if what in ("the first core", "all cores"):
        layer.cores[0].zero_()
    if what in ("the last core", "all cores"):
        layer.cores[-1].zero_()
    if what == "all cores":
        layer.cores[len(layer.cores) // 2].zero_()
    return layer


KILLED = ["half of the gates", "a bond", "the first core", "the last core", "all cores"]
# Bonds of these are wider than their neighbours can fill.
EXCESS = [
    TTShape(24, 30, (6, 4), (5, 6), (1, 9, 40, 8, 1)),
    TTShape(45, 105, (5, 3, 3), (3, 5, 7), (1, 7, 9, 60, 9, 9, 1)),
]


def noise(k, shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(k))


def ranks_of(layer):
    cores = layer.gated_cores()
    return [int(torch.linalg.matrix_rank(unfolded(cores, bond), rtol=1e-10)) for bond in range(1, len(cores))]


def descend(layer, steps=4):
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(steps):
        gradients(layer)
        optimizer.step()


@pytest.mark.parametrize("what", KILLED)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[4], EXCESS[0]], ids=str)
def test_training_brings_back_what_was_dead(shape, what):
    """Every direction that the neighbours can fill, at every bond; the weight is the same at first."""
    layer = kill(train(shape), what)
    expected = layer.to_dense().detach()
    full = ranks_of(train(shape))
    cores, _ = balance(layer.cores, layer.gates)
    dead = ranks_of(put(layer, cores))
    assert alive_ranks(cores) == [1, *dead, 1]
    assert all(found < most for found, most in zip(dead, full, strict=True))
    put(layer, revived(cores, noise))
    torch.testing.assert_close(layer.to_dense().detach(), expected, rtol=1e-10, atol=1e-12)
    descend(layer, steps=len(cores))
    assert ranks_of(layer) == full


@pytest.mark.parametrize("shape", EXCESS, ids=str)
def test_what_neighbours_cannot_fill_stays_zero_and_alone(shape):
    layer = train(shape)
    cores, _ = balance(layer.cores, layer.gates)
    assert all(torch.equal(new, old) for new, old in zip(revived(cores, noise), cores, strict=True))
    for k, alive in enumerate(alive_ranks(cores)[1:-1]):
        assert not cores[k][..., alive:].any()
        assert not cores[k + 1][alive:].any()


def test_dead_directions_begin_at_the_size_of_the_living_ones():
    layer = kill(train(SHAPES[2]), "half of the gates")
    cores, _ = balance(layer.cores, layer.gates)
    for old, new, alive in zip(cores, revived(cores, noise)[:-1], alive_ranks(cores)[1:], strict=False):
        ratio = new[..., alive:].norm(dim=(0, 1)).mean() / old[..., :alive].square().sum((0, 1)).mean().sqrt()
        assert 0.5 < ratio < 2


def test_fp32_cores_stay_fp32_and_compute_the_same():
    layer = train(SHAPES[2]).float()
    expected = layer.to_dense().detach()
    cores, gauge = balance(layer.cores, layer.gates)
    assert {core.dtype for core in cores} == {torch.float32}
    assert gauge.gradient(0, torch.ones_like(layer.cores[0])).dtype == torch.float32
    torch.testing.assert_close(put(layer, cores).to_dense().detach(), expected, rtol=1e-4, atol=1e-6)
