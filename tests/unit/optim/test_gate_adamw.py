"""The proximal step on rank gates: AdamW without pressure, and with it the minimum of loss plus penalty."""

import pytest
import torch
from torch import nn

from comera_dist.optim.gate_adamw import GateAdamW

LR, BETAS, EPS = 1e-2, (0.9, 0.95), 1e-8


def parameters(seed=0):
    """Gates of two bonds and one core."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in ((5,), (3,), (4, 6))]


def optimizer_of(parameters, kind=GateAdamW, lr=LR, betas=BETAS):
    *gates, core = parameters
    groups = [
        {"name": "cores", "params": [core], "weight_decay": 0.1},
        {"name": "gates", "params": gates, "weight_decay": 0.0},
    ]
    return kind(groups, lr=lr, betas=betas, eps=EPS)


def set_gradients(parameters, step, scale=1.0):
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def pressed(optimizer, pressure, weights):
    optimizer.pressure = torch.tensor(pressure, dtype=torch.float64)
    gates = next(group["params"] for group in optimizer.param_groups if group["name"] == "gates")
    optimizer.gate_weights = dict(zip(gates, weights, strict=True))
    return optimizer


def begin_anew(optimizer, gates):
    """What a sync does to gates: open, with moments and step counts of 0."""
    for gate in gates:
        gate.data.fill_(1.0)
        for tensor in optimizer.state[gate].values():
            tensor.zero_()


@pytest.mark.parametrize("pressure", [None, 0.0])
def test_without_pressure_it_is_adamw_bit_for_bit(pressure):
    ours, theirs = parameters(), parameters()
    optimizer, oracle = optimizer_of(ours), optimizer_of(theirs, torch.optim.AdamW)
    if pressure is not None:
        pressed(optimizer, pressure, [torch.ones(5), torch.ones(3)])
    for step in range(6):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step()
        oracle.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_gate_that_the_loss_does_not_hold_goes_to_zero_a_learning_rate_a_step_and_stays():
    *gates, core = everything = parameters()
    gates[0].data = torch.tensor([0.055, -0.055, 0.02, 0.0, -0.004])
    optimizer = pressed(optimizer_of(everything), 0.3, [torch.ones(5), torch.ones(3)])
    expected = gates[0].detach().clone()
    for _ in range(8):
        for parameter in everything:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        expected = expected.sign() * (expected.abs() - LR).clamp_min(0)
        assert torch.equal(gates[0], expected)
    assert torch.equal(gates[0], torch.zeros(5))
    assert core.abs().min() > 0, "cores are not pressed"


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_moments_are_those_of_the_loss_alone(scale):
    ours, theirs = parameters(), parameters()
    optimizer = pressed(optimizer_of(ours), 0.5, [torch.rand(5) + 0.5, torch.rand(3) + 0.5])
    oracle = optimizer_of(theirs)
    for step in range(5):
        set_gradients(ours, step, scale)
        set_gradients(theirs, step, scale)
        optimizer.step()
        oracle.step()
    for mine, other in zip(ours, theirs, strict=True):
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[mine][key], oracle.state[other][key])
    assert not torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[2], theirs[2]), "a core was pressed"


def test_a_step_is_that_of_adam_and_then_the_penalty_in_its_metric():
    ours, theirs = parameters(), parameters()
    # From weights that the cap leaves alone to some that it cuts.
    weights = [torch.tensor([1e-3, 0.03, 0.3, 3.0, 0.0]), torch.tensor([0.05, 0.5, 5.0])]
    optimizer, oracle = optimizer_of(ours), optimizer_of(theirs, torch.optim.AdamW)
    pressure, capped = 0.7, []
    for step in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            other.data = mine.detach().clone()
        set_gradients(ours, step)
        set_gradients(theirs, step)
        oracle.step()
        pressed(optimizer, pressure, weights).step()
        for mine, other, weight in zip(ours[:2], theirs[:2], weights, strict=True):
            root = (oracle.state[other]["exp_avg_sq"].double() / (1 - BETAS[1] ** (step + 1))).sqrt()
            relative = pressure * weight.double() / (root + EPS)
            capped += (relative >= 1).tolist()
            after_adam = other.detach().double()
            expected = after_adam.sign() * (after_adam.abs() - LR * relative.clamp_max(1)).clamp_min(0)
            torch.testing.assert_close(mine.detach().double(), expected, rtol=1e-6, atol=1e-8)
    assert set(capped) == {True, False}


def test_weights_keep_the_shape_of_what_the_process_holds():
    """At ZeRO stages above 0 the group holds one flat part of all gates."""
    flat = nn.Parameter(torch.ones(7))
    optimizer = GateAdamW([{"name": "gates", "params": [flat]}], lr=LR, weight_decay=0.0)
    flat.grad = torch.zeros(7)
    pressed(optimizer, 1.0, [torch.tensor([0.0, 0, 0, 1, 1, 1, 1])]).step()
    assert torch.equal(flat.detach(), torch.tensor([1.0] * 3 + [1 - LR] * 4))


def test_gates_that_begin_anew_make_the_first_steps_of_a_fresh_adam():
    """Where moments alone are set to 0, β₂ = 0.999 makes the first updates several times as large as the last ones."""
    *gates, core = everything = parameters()
    optimizer = optimizer_of(everything, betas=(0.9, 0.999))
    for step in range(400):
        set_gradients(everything, step)
        optimizer.step()
    begin_anew(optimizer, gates)
    fresh = [nn.Parameter(torch.ones_like(gate)) for gate in gates]
    oracle = torch.optim.AdamW(fresh, lr=LR, betas=(0.9, 0.999), eps=EPS, weight_decay=0.0)
    for step in range(400, 420):
        set_gradients(everything, step)
        set_gradients([*fresh, torch.zeros_like(core)], step)
        optimizer.step()
        oracle.step()
        assert all(torch.equal(mine, other) for mine, other in zip(gates, fresh, strict=True))
        if step == 400:
            assert torch.allclose((torch.cat(gates).detach() - 1).abs(), torch.tensor(LR), rtol=1e-3)
    assert optimizer.state[core]["step"] == 420


def test_the_penalty_is_as_strong_right_after_gates_begin_anew_as_in_the_long_run():
    """Gradients of ±1 alone, so that the root of their mean square is 1 at every step."""
    gate = nn.Parameter(torch.ones(200))
    groups = [{"name": "gates", "params": [gate], "weight_decay": 0.0}]
    optimizer = pressed(GateAdamW(groups, lr=LR, betas=(0.0, 0.999), eps=EPS), 0.1, [torch.full((200,), 2.0)])
    shrinks = []
    for step in range(300):
        if step == 200:
            begin_anew(optimizer, [gate])
        gate.grad = torch.ones(200)
        gate.grad[::2] = -1
        before = gate.detach().clone()
        optimizer.step()
        shrinks.append(float((before - gate.detach()).mean()))
        gate.data.copy_(before)
    assert shrinks == pytest.approx([LR * 0.1 * 2.0] * 300, rel=1e-3)


def test_a_group_that_is_stepped_in_parts_is_pressed_as_a_whole():
    """As at ZeRO stage 3, where the optimizer is called once for each part of a group."""
    whole, parts = parameters(), parameters()
    weights = [torch.rand(5) + 0.5, torch.rand(3) + 0.5]
    one, several = (pressed(optimizer_of(p), 0.3, weights) for p in (whole, parts))
    groups = [(group, group["params"]) for group in several.param_groups]
    for step in range(3):
        set_gradients(whole, step)
        set_gradients(parts, step)
        one.step()
        for group, _ in groups:
            group["params"] = []
        for group, members in groups:
            for parameter in members:
                group["params"] = [parameter]
                several.step()
                group["params"] = []
        assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
        for group, members in groups:
            group["params"] = members


def test_a_gate_at_zero_comes_back_when_the_loss_pulls_harder_than_the_pressure():
    def after(pull):
        everything = parameters()
        everything[0].data.zero_()
        optimizer = pressed(optimizer_of(everything), 0.1, [torch.ones(5), torch.ones(3)])
        generator = torch.Generator().manual_seed(0)
        for _ in range(100):
            for parameter in everything:
                parameter.grad = torch.randn(parameter.shape, generator=generator) - pull
            optimizer.step()
        return everything[0].detach()

    assert (after(1.0) > 0.3).all()
    assert (after(0.0).abs() < 0.1).all()


def test_gates_settle_where_the_loss_pulls_as_hard_as_the_pressure():
    """½·a·(g − b)² under noisy gradients, as training has them: at rest a·(|b| − |g|) = pressure · weight, or g = 0."""
    count, pressure, noise = 64, 0.2, 1.0
    curvature = torch.tensor([1.0, 2.0]).repeat_interleave(count)
    optimum = torch.tensor([1.0, -1.0]).repeat(count)
    weight = torch.tensor([1.0, 0.5]).repeat(count).flip(0)
    gate = nn.Parameter(torch.full((2 * count,), 0.5))
    optimizer = GateAdamW([{"name": "gates", "params": [gate]}], lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0)
    pressed(optimizer, pressure, [weight])
    generator = torch.Generator().manual_seed(0)
    steps, total = 3000, torch.zeros(2 * count)
    for step in range(steps):
        gate.grad = curvature * (gate.detach() - optimum) + noise * torch.randn(gate.shape, generator=generator)
        optimizer.step()
        if step >= steps // 3:
            total += gate.detach()
    settled = total / (steps - steps // 3)
    pull = curvature * (optimum.abs() - settled.abs())
    assert torch.equal(settled.sign(), optimum)
    torch.testing.assert_close((pull / weight).mean(), torch.tensor(pressure), rtol=0.05, atol=0)
    for a in (1.0, 2.0):
        for w in (0.5, 1.0):
            chosen = (curvature == a) & (weight == w)
            assert pull[chosen].mean().item() == pytest.approx(pressure * w, rel=0.15)
