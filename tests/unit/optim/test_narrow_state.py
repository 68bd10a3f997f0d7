"""Moments in bf16 and in 8 bits: the rounding, and steps against the same optimizer with moments in fp32."""

import pytest
import torch
from support import FACTS, TINY, VOCAB

from comera_dist.config.optim_section import Optim
from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.errors import ConfigError
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim import narrow_state
from comera_dist.optim.adamw import AdamW
from comera_dist.optim.base import BLOCK, MEAN, SQUARE
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.narrow_moments import codes, decoded, encoded, moment, narrow, nearest, rounded, widen
from comera_dist.optim.narrow_state import NarrowStateOptimizer

KINDS = ["adamw", "spectral"]
FORMS = ["bf16", "8bit"]


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


def numbers(role, count=1000):
    """Numbers of very different sizes, with a block of zeros; squares if the role is SQUARE."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, generator=generator) * 10 ** (4 * torch.rand(count, generator=generator) - 6)
    x[BLOCK : 2 * BLOCK] = 0
    return x.square() if role == SQUARE else x


def test_codes_are_those_of_the_dynamic_tree():
    signed, unsigned = (codes(is_square, torch.device("cpu")).numbers.double() for is_square in (False, True))
    # Seven bits, or eight without a sign: k leading zeros are a factor 10⁻ᵏ, the bits behind the next 1 a share.
    for found, bits in ((signed, 7), (unsigned, 8)):
        trees = set()
        for code in range(1, 2**bits):
            zeros = bits - code.bit_length()
            fraction, rest = code - (1 << code.bit_length() - 1), code.bit_length() - 1
            trees.add(10.0**-zeros * (0.1 + 0.9 * (fraction + 0.5) / 2**rest))
        largest = sorted(trees)[-(2 ** (bits - 1)) :]  # of the first decade, where both agree
        torch.testing.assert_close(found[found < 1][-len(largest) :], torch.tensor(largest).double())
    assert len(signed) == len(unsigned) == 256
    assert torch.equal(signed[:-1].sort().values, -signed[:-1].sort(descending=True).values)  # 1 alone has no opposite
    assert unsigned.min() == 0


@pytest.mark.parametrize("role", [MEAN, SQUARE])
def test_each_number_becomes_the_nearest_code_of_its_block(role):
    x = numbers(role)
    found, table = decoded(*encoded(x, role), role), codes(role == SQUARE, x.device).numbers.double()
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK].double()
        scale = block[block.abs().argmax()]
        shares = block / scale if scale else block
        nearest_codes = (shares[:, None] - table).abs().argmin(1)
        if role == SQUARE:
            nearest_codes[(nearest_codes == 0) & (block > 0)] = 1
        expected = table[nearest_codes] * scale
        torch.testing.assert_close(found[start : start + BLOCK].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("is_square", [False, True])
def test_the_nearest_code_is_that_of_a_search(is_square):
    table = codes(is_square, torch.device("cpu"))
    bounds = table.bounds[:-1]
    near = torch.cat([torch.nextafter(bounds, bounds + side) for side in (-1, 1)])
    shares = torch.cat([near, bounds, table.numbers, torch.linspace(0 if is_square else -1, 1, 100_001)])
    assert torch.equal(nearest(shares, table).long(), torch.bucketize(shares, bounds))


def test_rare_rows_beside_frequent_ones_take_steps_of_usual_size():
    """At a step without a gradient the mean of the last one is still there, and so must be its square."""
    table = torch.nn.Embedding(2, BLOCK // 2)
    optimizer = build_optimizer(table, Optim(lr=1.0, weight_decay=0.0, moments="8bit"))
    for rows in ([1.0, 1e-4], [1.0, 0.0]):
        table.weight.grad = torch.tensor(rows)[:, None].expand_as(table.weight).clone()
        before = table.weight.detach().clone()
        optimizer.step()
    assert (table.weight - before).abs().max() < 2


@pytest.mark.parametrize("role", [MEAN, SQUARE])
def test_numbers_that_were_in_8_bits_stay_the_same_bits(role):
    once = decoded(*encoded(numbers(role), role), role)
    assert torch.equal(decoded(*encoded(once, role), role), once)


@pytest.mark.parametrize("role", [MEAN, SQUARE])
def test_a_block_with_a_bad_number_is_seen_to_be_bad(role):
    x = numbers(role)
    x[3] = torch.nan
    found = decoded(*encoded(x, role), role)
    assert found[:BLOCK].isnan().all()
    assert found[BLOCK:].isfinite().all()


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
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_computes_in_fp32_and_narrows_what_it_keeps(kind, form, at_once, monkeypatch):
    monkeypatch.setattr(narrow_state, "AT_ONCE", at_once)  # 100: most parameters alone, or in pieces
    (exact, exact_optimizer), (found, optimizer) = trained(kind, "fp32", 1), trained(kind, form, 1)
    assert isinstance(optimizer, NarrowStateOptimizer)
    roles = {parameter: group["method"].roles for group in optimizer.param_groups for parameter in group["params"]}
    for expected, parameter in zip(exact, found, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-7)
        wide, kept = exact_optimizer.state[expected], optimizer.state[parameter]
        assert kept["step"] == wide["step"] == 1
        for name, role in roles[parameter].items():
            assert kept[name].dtype == {"bf16": torch.bfloat16, "8bit": torch.uint8}[form]
            if form == "bf16":
                torch.testing.assert_close(kept[name].float(), wide[name], rtol=2**-7, atol=1e-38)
            else:
                nearest = decoded(*encoded(wide[name], role), role)
                torch.testing.assert_close(
                    moment(kept, name, role), nearest, rtol=1e-4, atol=0.01 * float(wide[name].abs().max())
                )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_further_steps_start_from_what_was_kept(kind, form):
    exact, found = trained(kind, "fp32", 6)[0], trained(kind, form, 6)[0]
    again = trained(kind, form, 6)[0]
    assert all(map(torch.equal, found, again))
    assert not all(map(torch.equal, found, exact))
    if form == "bf16":
        for expected, parameter in zip(exact, found, strict=True):
            torch.testing.assert_close(parameter, expected, rtol=0.05, atol=5e-3)
    distance = sum((a - b).square().sum() for a, b in zip(found, exact, strict=True)).sqrt()
    start = trained(kind, "fp32", 0)[0]
    way = sum((a - b).square().sum() for a, b in zip(exact, start, strict=True)).sqrt()
    assert distance < {"bf16": 0.03, "8bit": 0.15}[form] * way


@pytest.mark.parametrize("form", FORMS)
def test_parameters_in_other_dtypes_are_refused(form):
    sentence = f"bias is in bfloat16, but optim.moments = {form} needs parameters in float32"
    layer = torch.nn.Linear(4, 2)
    layer.bias = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(ConfigError, match=sentence):
        build_optimizer(layer, Optim(moments=form))
    layer.bias.requires_grad_(False)
    build_optimizer(layer, Optim(moments=form))  # a frozen one is never stepped


@pytest.mark.parametrize("turns", ["weight", "gradient"])
@pytest.mark.parametrize("form", FORMS)
def test_a_long_parameter_or_its_gradient_may_be_turned(form, turns, monkeypatch):
    monkeypatch.setattr(narrow_state, "AT_ONCE", 100)

    def stepped(moments):
        layer, start = torch.nn.Linear(16, 12, bias=False), torch.linspace(-1, 1, 192)
        weight = start.view(16, 12).t() if turns == "weight" else start.view(12, 16)
        layer.weight = torch.nn.Parameter(weight.clone(memory_format=torch.preserve_format))
        layer.weight.grad = start.cos().view(16, 12).t()
        build_optimizer(layer, Optim(lr=0.1, moments=moments)).step()
        return layer.weight

    torch.testing.assert_close(stepped(form), stepped("fp32"))


@pytest.mark.parametrize("at_once", [1 << 20, 100])
@pytest.mark.parametrize("form", FORMS)
def test_parameters_without_a_gradient_stay_as_they_are(form, at_once, monkeypatch):
    monkeypatch.setattr(narrow_state, "AT_ONCE", at_once)
    model = torch.nn.ModuleDict({"frozen": torch.nn.Embedding(8, 64), "trained": torch.nn.Linear(64, 8)})
    model["frozen"].weight.requires_grad_(False)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = build_optimizer(model, Optim(lr=0.1, moments=form))
    model["trained"](model["frozen"](torch.arange(8))).square().sum().backward()
    optimizer.step()
    assert [torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)] == [True, False, False]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_is_as_narrow_as_the_saved_one(kind, form):
    saved, loaded = trained(kind, form)[1], trained(kind, form, 0)[1]
    loaded.load_state_dict(saved.state_dict())
    for old, new in zip(states(saved), states(loaded), strict=True):
        assert {key: (old[key].dtype, old[key].tolist()) for key in old} == {
            key: (new[key].dtype, new[key].tolist()) for key in new
        }


@pytest.mark.parametrize(("form", "other"), [("8bit", "fp32"), ("8bit", "bf16"), ("fp32", "8bit")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_loaded_into_an_optimizer_of_another_form(kind, form, other):
    saved, loaded = trained(kind, form)[1], trained(kind, other)[1]
    dtypes = [{key: kept.dtype for key, kept in state.items()} for state in states(loaded)]
    loaded.load_state_dict(saved.state_dict())
    assert dtypes == [{key: kept.dtype for key, kept in state.items()} for state in states(loaded)]
    for group, old, new in zip(groups(saved), states(saved), states(loaded), strict=True):
        for name, role in group["method"].roles.items():
            wide = moment(old, name, role)
            atol = 0.02 * float(wide.abs().max())
            torch.testing.assert_close(moment(new, name, role).float(), wide, rtol=0, atol=atol)


def groups(optimizer):
    """The group of each parameter."""
    return [group for group in optimizer.param_groups for _ in group["params"]]


def states(optimizer):
    return [optimizer.state[parameter] for group in optimizer.param_groups for parameter in group["params"]]


def test_widened_moments_become_the_same_codes():
    state = {"exp_avg": numbers(MEAN), "exp_avg_sq": numbers(SQUARE), "step": 1}
    roles = {"exp_avg": MEAN, "exp_avg_sq": SQUARE}
    narrow(state, roles, "8bit", "key")
    before = dict(state)
    widen(state, roles)
    assert set(state) == {"exp_avg", "exp_avg_sq", "step"}
    narrow(state, roles, "8bit", "key")
    assert all(torch.equal(torch.as_tensor(state[key]), torch.as_tensor(kept)) for key, kept in before.items())


def test_moments_that_are_not_narrowed_have_the_dtype_of_their_parameter():
    state = AdamW(Optim(lr=0.1)).blank(torch.zeros(3, dtype=torch.float64))
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float64


def test_a_slow_mean_does_not_stand_still():
    moments = torch.ones(1000).bfloat16()
    for step in range(1000):  # towards 0.5 with a decay of 0.999: steps far below bf16's resolution
        moments = rounded(0.999 * moments.float() + 0.001 * 0.5, str(step))
    assert float(moments.float().mean()) == pytest.approx(0.5 + 0.5 * 0.999**1000, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_counts_the_bytes_of_a_number(kind):
    overrides = [*TINY, "train.zero_stage=0", f"optim.kind={kind}"]
    for form in ("fp32", *FORMS):
        config = read_config(None, [*overrides, f"optim.moments={form}"])
        plan = plan_model(config, FACTS)
        costs = estimate(config, plan, 1, 128)
        model = build_model(config.model, plan, torch.Generator().manual_seed(0))
        held = 0
        for group in build_optimizer(model, config.optim).param_groups:
            for parameter in group["params"]:
                state = group["method"].blank(parameter)
                held += sum(tensor.nbytes for key, tensor in state.items() if key != "step")
        # A short parameter has a scale for fewer numbers than a whole block.
        slack = 4 * len(plan) * 8 if form == "8bit" else 0
        assert 0 <= 8 * costs.params + held - costs.state_bytes_per_process <= slack


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["optim.kind=muon", "model.format=dense"], "optim.kind = muon keeps its state in fp32; set optim.kind=adamw"),
        (["train.cuda_graphs=true"], "optim.moments = bf16 makes other tensors in every step"),
    ],
)
def test_what_cannot_be_rounded_is_refused(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_config(None, [*TINY, "optim.moments=bf16", *overrides])
