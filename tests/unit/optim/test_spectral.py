"""Spectral descent against singular value decompositions, factor by factor.

Shapes: a factor is a batch of matrices (n, R, C).
"""

from math import prod, sqrt

import pytest
import torch
from support import TINY, VOCAB
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.config.reader import read_config
from comera_dist.formats.block_train import plan_blocks
from comera_dist.formats.bottleneck import BottleneckPlan
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.sltrain import SLTrainPlan
from comera_dist.formats.tensor_train.shapes import plan_tt
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.base import RATE
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.factors import Factor, factors_of
from comera_dist.optim.spectral_descent import (
    AT_ONCE,
    JOINED,
    QUINTIC,
    STEPS,
    WEAKEST,
    SpectralDescent,
    iterated,
    orthogonal,
    stepped_at_once,
)

GENERATOR = torch.Generator().manual_seed(0)
PLANS = [
    DensePlan(12, 18),
    plan_tt(12, 18, 1, 5),
    plan_tt(12, 18, 2, 6, outer_rank=3),
    plan_blocks(12, 18, 2),
    plan_blocks(11, 17, 2),  # padded
    BottleneckPlan(12, 18, 5),
    SLTrainPlan(12, 18, 5, 20, 3),
]


class Block(nn.Module):
    """One layer with a name as in a block."""

    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"layer": layer})])


def near_orthogonal(matrix_RC):
    """The polynomial of Newton–Schulz on singular values, in float64."""
    U, S, Vh = torch.linalg.svd(matrix_RC.double(), full_matrices=False)
    S = S / S.norm()
    a, b, c = QUINTIC
    for _ in range(STEPS):
        S = a * S + b * S**3 + c * S**5
    return U @ torch.diag(S) @ Vh


@pytest.mark.parametrize("sizes", [[(1, 8, 5)], [(3, 4, 6), (2, 6, 4)], [(2, 3, 9), (1, 3, 9)], [(1, 4, 4)]], ids=str)
def test_directions_are_those_of_the_singular_vectors(sizes):
    batches = [torch.randn(size, generator=GENERATOR) for size in sizes]
    for batch, found in zip(batches, orthogonal(batches), strict=True):
        expected = torch.stack([near_orthogonal(matrix) for matrix in batch])
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.6
        assert values.max() < 1.25


def test_equal_shapes_are_stepped_together_up_to_a_number():
    sizes = [(1, 4, 6), (2, 6, 4), (1, 4, 4), (1, 6, 4), (3, 4, 6), (1, 4, 6)]  # 24, 48, 16, 24, 72 and 24 numbers
    assert stepped_at_once(sizes, 1000) == [[0, 1, 3, 4, 5], [2]]
    assert stepped_at_once(sizes, 72) == [[0, 1], [3], [4], [5], [2]]
    assert stepped_at_once(sizes, 10) == [[0], [1], [3], [4], [5], [2]]


@pytest.mark.parametrize("format", ["dense", "block_train"])
def test_a_step_does_not_depend_on_how_many_factors_are_stepped_together(format, monkeypatch):
    config = read_config(None, [*TINY, f"model.format={{rest: {format}, embedding: dense}}", "optim.kind=spectral"])

    def weights():
        generator = torch.Generator().manual_seed(0)
        model = Decoder(config.model, plan_decoder(config, VOCAB), generator)
        optimizer = build_optimizer(model, config.optim)
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    together = weights()
    monkeypatch.setitem(AT_ONCE, "cpu", 1)
    torch.testing.assert_close(weights(), together, atol=1e-6, rtol=1e-5)


def test_iterations_made_at_once_are_as_exact_as_one_by_one():
    """On singular values over six decades: the small ones decide how well rounding errors stay small."""
    U, _, Vh = torch.linalg.svd(torch.randn(16, 64, generator=GENERATOR), full_matrices=False)
    X = (U * torch.logspace(0, -6, 16)) @ Vh
    expected, X = near_orthogonal(X), X[None] / X.norm()
    for steps in ([1] * STEPS, JOINED):
        found = X
        for n in steps:
            found = iterated(found, n)
        assert torch.linalg.matrix_norm(found[0].double() - expected, 2) < 5e-5


def test_momentum_rises_over_the_warm_up():
    weight = nn.Linear(3, 4).weight
    factors = {weight: Factor("a", (1, 4, 3), 1, (4, 3))}

    def momenta(momentum, steps):
        optimizer = SpectralDescent([{"params": [weight]}], factors, 0.02, momentum, steps)
        return [float(optimizer._present_momentum(torch.tensor(float(step)))) for step in (1, 3, 5, 9)]

    assert momenta(0.95, 4) == pytest.approx([0.85, 0.90, 0.95, 0.95])
    assert momenta(0.95, 0) == pytest.approx([0.95] * 4)
    assert momenta(0.8, 4) == pytest.approx([0.8] * 4)


def test_a_momentum_of_zero_gives_no_step():
    assert not orthogonal([torch.zeros(2, 3, 4)])[0].any()


def slow_step(layer, gradients, momenta, lr, weight_decay, beta):
    """One step of every factor, by the definition, in float64."""
    sizes = layer.plan.unfoldings if hasattr(layer, "plan") else {"weight": (1, *layer.weight.shape)}
    weights = {name: layer.get_parameter(name).detach().double() for name in sizes}
    K, dense = len(sizes), layer.plan.dense_size if hasattr(layer, "plan") else layer.weight.shape
    typical = {}
    for name, size in sizes.items():
        squares = torch.linalg.svdvals(weights[name].reshape(size)).square()
        typical[name] = max(WEAKEST, squares.mean().sqrt().item())
    new = {}
    for name, size in sizes.items():
        momenta[name] = beta * momenta.get(name, 0.0) + (1 - beta) * gradients[name].double()
        ahead = beta * momenta[name] + (1 - beta) * gradients[name].double()
        direction = torch.stack([near_orthogonal(matrix) for matrix in ahead.reshape(size)]).reshape(ahead.shape)
        others = prod(value for other, value in typical.items() if other != name)
        rho = sqrt(dense[0] / dense[1]) / (sqrt(K) * others)
        new[name] = weights[name] * (1 - RATE * lr * weight_decay) ** (1 / K) - RATE * lr * rho * direction
    return new


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_steps_are_those_of_the_definition(plan):
    layer = plan.build(0.3, GENERATOR)
    factors = factors_of(Block(layer))
    group = {"params": list(factors), "weight_decay": 0.1, "name": "factors"}
    optimizer, momenta = SpectralDescent([group], factors, lr=0.02, momentum=0.9), {}
    names = {parameter: name for name, parameter in layer.named_parameters()}
    for _ in range(3):
        for parameter in factors:
            parameter.grad = torch.randn(parameter.shape, generator=GENERATOR)
        gradients = {names[p]: p.grad for p in factors}
        expected = slow_step(layer, gradients, momenta, lr=0.02, weight_decay=0.1, beta=0.9)
        optimizer.step()
        for name, weight in expected.items():
            torch.testing.assert_close(layer.get_parameter(name).double(), weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("plan", PLANS[1:4], ids=str)
def test_a_frozen_factor_stays_and_counts_in_the_steps_of_the_others(plan):
    found = {}
    for frozen in ("", "core_2"):
        layer = plan.build(0.3, torch.Generator().manual_seed(1))
        layer.core_2.data.mul_(5)
        factors, generator = factors_of(Block(layer)), torch.Generator().manual_seed(2)
        optimizer = SpectralDescent([{"params": list(factors), "weight_decay": 0.1}], factors, lr=0.02)
        for name, parameter in layer.named_parameters():
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None if name == frozen else gradient
        before = layer.core_2.detach().clone()
        optimizer.step()
        assert torch.equal(layer.core_2, before) == bool(frozen)
        found[frozen] = layer.core_1.detach()
    torch.testing.assert_close(found["core_2"], found[""])


class Uncapturable(TorchDispatchMode):
    """Collects operations that a CUDA graph cannot hold: they move numbers between host and device."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "lift_fresh", "_to_copy", "nonzero"):
            self.found.add(name)
        return function(*args, **(kwargs or {}))


def test_a_step_moves_nothing_between_host_and_device_after_the_first():
    layer = plan_tt(12, 18, 2, 6, outer_rank=3).build(0.3, GENERATOR)
    factors = factors_of(Block(layer))
    for parameter in factors:
        parameter.grad = torch.randn(parameter.shape, generator=GENERATOR)
    groups = [{"params": list(factors), "lr": torch.tensor(0.02), "weight_decay": 0.1}]
    optimizer, found = SpectralDescent(groups, factors, lr=0.02, momentum=0.9), []
    for _ in range(2):
        with Uncapturable() as mode:
            optimizer.step()
        found.append(mode.found)
    assert found == [{"lift_fresh"}, set()]


def test_on_dense_weights_it_is_muon():
    def layer():
        return DensePlan(12, 18).build(0.3, torch.Generator().manual_seed(1))

    mine, other = layer(), layer()
    optimizer = SpectralDescent([{"params": [mine.weight]}], factors_of(Block(mine)), lr=0.02, momentum=0.95)
    muon = torch.optim.Muon([other.weight], lr=RATE * 0.02, weight_decay=0.0, adjust_lr_fn="original")
    for _ in range(3):
        mine.weight.grad = other.weight.grad = torch.randn(18, 12, generator=GENERATOR)
        optimizer.step()
        muon.step()
    # torch's Muon iterates in bf16, whose rounding is 2⁻⁸ of an update. An entry of U Vᵀ is about 1 / √18.
    entry = RATE * 0.02 * sqrt(18 / 12) / sqrt(18)
    torch.testing.assert_close(mine.weight, other.weight, atol=3 * entry * 2**-4, rtol=0)


def test_a_weight_of_isometries_changes_as_a_dense_weight_over_the_root_of_its_factors():
    layer = plan_tt(12, 18, 2, 5).build(0.3, GENERATOR)
    factors = factors_of(Block(layer))
    for parameter, factor in factors.items():
        U, _, Vh = torch.linalg.svd(parameter.detach().reshape(factor.size), full_matrices=False)
        parameter.data.copy_((U @ Vh).reshape(parameter.shape))
    before = layer.to_dense().detach()
    parameter, factor = next(iter(factors.items()))
    for other in factors:
        other.grad = torch.zeros_like(other)
    parameter.grad = torch.randn(parameter.shape, generator=GENERATOR)
    SpectralDescent([{"params": list(factors)}], factors, lr=0.01, momentum=0.95).step()
    norm = torch.linalg.matrix_norm(layer.to_dense().detach() - before, 2).item()
    dense_step = RATE * 0.01 * sqrt(18 / 12)
    assert norm == pytest.approx(dense_step / sqrt(factor.count), rel=0.35)  # Newton–Schulz: 0.7 to 1.2


@pytest.mark.parametrize("format", ["tensor", "low_rank", "block_train", "dense"])
def test_it_takes_the_linear_layers_of_blocks_and_adamw_all_else(format):
    overrides = [f"model.format.attention={format}", "optim.kind=spectral", "train.zero_stage=0"]
    config = read_config(None, [*TINY, *overrides, "optim.matrix_lr_scale=0.5"])
    model = Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0))
    names = {p: name for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, config.optim)
    taken = {
        names[p] for group in optimizer.param_groups if group["method"].name == "spectral" for p in group["params"]
    }
    expected = {name for name in names.values() if ".layers." in name and ("core_" in name or ".weight" in name)}
    assert taken
    assert taken == {name for name in expected if "norm" not in name}
    scales = {group["name"]: group["lr_scale"] for group in optimizer.param_groups}
    assert {scales[name] for name in scales if name in ("matrices", "factors")} == {0.5}
    assert scales["no_decay"] == 1.0
