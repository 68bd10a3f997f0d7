"""Moments in bf16: the rounding, and steps against the same optimizer with moments in fp32."""

import pytest
import torch
from support import FACTS, TINY, VOCAB

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.errors import ConfigError
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim import rounded_state
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.rounded_state import RoundedStateOptimizer, rounded

KINDS = ["adamw", "spectral"]


def test_numbers_become_one_of_their_neighbours_and_keep_their_mean():
    x = torch.tensor([1.0, 1 + 2**-9, -1 - 3 * 2**-10, 3e-39, -2.5e20, 0.0])
    draws = torch.stack([rounded(x, f"key {number}") for number in range(4000)]).double()
    step = torch.tensor([2**-7, 2**-7, 2**-7, 2.0**-133, 2.0**60, 1.0]).double()  # of bf16 around each number
    assert (draws - x).abs().lt(step).all()
    assert (draws.mean(0) - x).abs().lt(0.04 * step).all()  # five standard deviations of a mean of 4,000
    assert torch.equal(draws[:, 0], torch.ones(4000).double())  # bf16 has it
    assert len(draws[:, 1].unique()) == 2
    assert torch.equal(rounded(x, "key"), rounded(x, "key"))


def test_numbers_that_are_not_finite_stay_so():
    up, down, undefined = rounded(torch.tensor([torch.inf, -torch.inf, torch.nan]), "key")
    assert up == torch.inf
    assert down == -torch.inf
    assert undefined.isnan()


def trained(kind, moments, steps=3):
    """The parameters after some steps on the same gradients, and the optimizer."""
    overrides = [*TINY, "model.format.attention=dense", f"optim.kind={kind}", f"optim.moments={moments}"]
    config = read_config(None, overrides)
    model = build_model(config.model, plan_model(config, FACTS), torch.Generator().manual_seed(0))
    optimizer = build_optimizer(model, config.optim)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(5, VOCAB, (4, 16), generator=generator)
        optimizer.zero_grad()
        (model(tokens, tokens) / tokens.numel()).backward()
        optimizer.step()
    return list(model.parameters()), optimizer


@pytest.mark.parametrize("at_once", [1 << 20, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_computes_in_fp32_and_rounds_what_it_keeps(kind, at_once, monkeypatch):
    monkeypatch.setattr(rounded_state, "AT_ONCE", at_once)  # 100: most parameters alone, or in pieces
    (exact, exact_optimizer), (found, optimizer) = trained(kind, "fp32", 1), trained(kind, "bf16", 1)
    assert isinstance(optimizer, RoundedStateOptimizer)
    for expected, parameter in zip(exact, found, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-7)
        wide, narrow = exact_optimizer.state[expected], optimizer.state[parameter]
        assert narrow["step"] == wide["step"] == 1
        for name in narrow.keys() - {"step"}:
            assert narrow[name].dtype == torch.bfloat16
            torch.testing.assert_close(narrow[name].float(), wide[name], rtol=2**-7, atol=1e-38)


@pytest.mark.parametrize("kind", KINDS)
def test_further_steps_start_from_what_was_kept(kind):
    exact, found = trained(kind, "fp32", 6)[0], trained(kind, "bf16", 6)[0]
    again = trained(kind, "bf16", 6)[0]
    assert all(map(torch.equal, found, again))
    assert not all(map(torch.equal, found, exact))
    for expected, parameter in zip(exact, found, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0.05, atol=5e-3)


def test_a_slow_mean_does_not_stand_still():
    moments = torch.ones(1000).bfloat16()
    for step in range(1000):  # towards 0.5 with a decay of 0.999: steps far below bf16's resolution
        moments = rounded(0.999 * moments.float() + 0.001 * 0.5, str(step))
    assert float(moments.float().mean()) == pytest.approx(0.5 + 0.5 * 0.999**1000, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_counts_two_bytes_a_number(kind):
    overrides = [*TINY, "train.zero_stage=0", f"optim.kind={kind}"]
    costs = {}
    for moments in ("fp32", "bf16"):
        config = read_config(None, [*overrides, f"optim.moments={moments}"])
        plan = plan_model(config, FACTS)
        costs[moments] = estimate(config, plan, 1, 128)
        model = build_model(config.model, plan, torch.Generator().manual_seed(0))
        optimizer = build_optimizer(model, config.optim)
        held = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                tensors = group["method"].tensors(group["method"].blank(parameter)).values()
                held += sum(tensor.nbytes for tensor in tensors)
        assert costs[moments].state_bytes_per_process == 8 * costs[moments].params + held


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["optim.kind=muon", "model.format=dense"], "optim.kind = muon keeps its state in fp32; set optim.kind=adamw"),
        (["train.cuda_graphs=true"], "optim.moments = bf16 draws random numbers that a CUDA graph would repeat"),
    ],
)
def test_what_cannot_be_rounded_is_refused(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_config(None, [*TINY, "optim.moments=bf16", *overrides])
