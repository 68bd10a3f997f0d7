"""The pressure of each step against the objective that it comes from, computed with plain numbers."""

import json
import math
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.config.ranks_section import Ranks
from comera_dist.formats.tensor_train.shapes import TTShape
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.objective import LOSS_MEMORY, Objective

PLANNED = 1000.0


def objective(target=None, size=None, **ranks):
    result = Objective(Ranks(**{"adapt": True, "pressure": 1.0, **ranks}), PLANNED, torch.device("cpu"))
    result.target_size = target
    result.size = PLANNED if size is None else size
    return result


def loss_tensor(value):
    return torch.tensor(value, dtype=torch.float64)


def pressures(subject, losses, first_step=0):
    return [float(subject.pressure(loss_tensor(loss), first_step + k)) for k, loss in enumerate(losses)]


def noisy_losses(count, mean=3.0, seed=0):
    return [random.Random(seed + k).gauss(mean, 0.5) for k in range(count)]


def test_early_pressure_rises_to_its_value_and_stays():
    subject = objective(pressure=0.6, warmup_steps=3)
    assert pressures(subject, [5.0] * 6) == pytest.approx([0.15, 0.3, 0.45, 0.6, 0.6, 0.6])


def test_early_pressure_without_warm_up_is_there_at_once_whatever_the_loss():
    assert pressures(objective(pressure=0.6), [9.0, 0.1, 3.0]) == pytest.approx([0.6] * 3)


@pytest.mark.parametrize("rho", [0.05, 0.1, 1.0])
def test_late_pressure_without_a_bound_presses_until_the_target_is_met(rho):
    subject = objective(target=400.0, rho=rho)
    assert pressures(subject, [2.0, 9.0]) == pytest.approx([(1 + rho) / rho] * 2)
    subject.size = 401.0
    assert pressures(subject, [9.0]) == pytest.approx([(1 + rho) / rho])
    for size in (400.0, 399.0):
        subject.size = size
        assert pressures(subject, [9.0]) == [0.0]


@pytest.mark.parametrize("gamma", [0.5, 1.0])
@pytest.mark.parametrize("size", [1000.0, 700.0, 520.0])
def test_with_a_bound_the_larger_miss_decides_the_branch(size, gamma):
    """max(L − L₀, γ(S/S* − 1)), L smoothed: each branch divided by its factor of L."""
    rho, bound, target = 0.1, 2.5, 500.0
    subject = objective(target=target, size=size, rho=rho, loss_bound=bound, pressure=gamma)
    mean, branches = None, set()
    edge = bound + gamma * (size / target - 1)
    for loss in [edge - 0.2, *noisy_losses(60, edge + 0.5), *noisy_losses(90, edge - 0.5, seed=100)]:
        mean = loss if mean is None else LOSS_MEMORY * mean + (1 - LOSS_MEMORY) * loss
        loss_leads = max(mean - bound, gamma * (size / target - 1)) == mean - bound
        branches.add(loss_leads)
        expected = gamma * (rho / (1 + rho) if loss_leads else (1 + rho) / rho)
        assert pressures(subject, [loss]) == pytest.approx([expected])
        assert bool(subject.loss_leads) == loss_leads
    assert branches == {True, False}, "the losses of this test reach one branch only"


def test_a_bound_leaves_no_pressure_once_the_target_is_met():
    assert pressures(objective(target=500.0, size=500.0, loss_bound=1.0), [9.0]) == [0.0]


def test_a_spike_of_one_step_does_not_change_the_branch():
    subject = objective(target=500.0, size=1000.0, loss_bound=3.0, rho=0.1)
    pressing = pressures(subject, [3.0] * 60)[-1]
    assert pressures(subject, [20.0]) == [pressing]
    assert pressures(subject, [20.0] * 10)[-1] < pressing


@pytest.mark.parametrize("at", [0, 1, 25])
@pytest.mark.parametrize("target", [None, 500.0])
def test_restored_it_goes_on_identically(at, target):
    ranks = {"pressure": 0.6, "warmup_steps": 30, "loss_bound": 2.0, "rho": 0.1}
    losses = noisy_losses(60)
    whole = objective(target=target, size=1000.0, **ranks)
    expected = pressures(whole, losses)
    first = objective(target=target, size=1000.0, **ranks)
    pressures(first, losses[:at])
    second = objective(size=1000.0, **ranks)
    second.restore(json.loads(json.dumps(first.state())))
    assert pressures(second, losses[at:], at) == expected[at:]
    assert second.state() == whole.state()
    assert second.target_size == target


def test_applied_sums_all_pressures():
    subject = objective(pressure=0.6, warmup_steps=30)
    early = pressures(subject, noisy_losses(40))
    subject.target_size = 500.0
    late = pressures(subject, noisy_losses(10))
    assert subject.state()["applied"] == pytest.approx(math.fsum(early + late))


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("target", [None, 500.0, 2000.0])
def test_the_device_is_asked_nothing(target):
    """Reading a number off a GPU would stop its queue at every step."""
    subject = objective(target=target, loss_bound=2.0)
    loss = loss_tensor(3.0)
    with Operations() as operations:
        results = [subject.pressure(loss, step) for step in range(3)]
    assert all(isinstance(result, torch.Tensor) and result.shape == () for result in results)
    reads = [name for name in operations.names if "_local_scalar_dense" in name]
    assert operations.names
    assert not reads
    with Operations() as control:
        float(loss)
    assert any("_local_scalar_dense" in name for name in control.names), "this test would not notice"


def test_weights_are_the_gradient_of_relative_size():
    layout = GateLayout.of({"layer": TTShape(24, 30, (6, 4), (5, 6), (1, 2, 3, 2, 1))})
    soft_ranks_B = torch.tensor([1.5, 2.0, 0.5], dtype=torch.float64)
    cost = [6 + 4 * 2.0 + 1, 4 * 1.5 + 5 * 0.5 + 1, 5 * 2.0 + 6 + 1]
    cost_G = torch.tensor([cost[0]] * 2 + [cost[1]] * 3 + [cost[2]] * 2, dtype=torch.float64)
    subject = objective()
    torch.testing.assert_close(subject.weights(layout, soft_ranks_B), cost_G / PLANNED)
    subject.target_size = 400.0
    torch.testing.assert_close(subject.weights(layout, soft_ranks_B), cost_G / 400.0)
