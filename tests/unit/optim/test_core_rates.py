"""AdamW's learning rate of each core, from the number of inputs that its map sums over."""

import pytest
import torch
from support import TINY, VOCAB
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.block_train import plan_blocks
from comera_dist.formats.bottleneck import BottleneckPlan
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.tensor_train.shapes import TTShape, plan_tt
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.factors import factors_of, fan_in_rates
from comera_dist.optim.groups import parameter_groups, set_learning_rate
from comera_dist.ranks.scheduler import RankScheduler, adamw

# Cores of the train: 8 x 16, (16 · 8) x 16, (16 · 4) x 64 | 64 x (8 · 16), 16 x (8 · 16), 16 x 4.
TRAIN = TTShape(256, 256, (8, 8, 4), (8, 8, 4), (1, 16, 16, 64, 16, 16, 1))
EXPECTED = {
    plan_blocks(256, 256, 2): [8, 4],  # blocks of 16: core_1 sums over 16 inputs, core_2 over 2 · 16
    plan_blocks(64, 256, 1): [4, 4],
    plan_blocks(15, 17, 2): [15 / 5 / 2, 15 / 6 / 2],  # blocks of 5, of which there are 3
    plan_tt(256, 256, 1, 64): [0.5, 2],
    plan_tt(64, 256, 1, 32): [0.5, 1],
    TRAIN: [16 / 3, 1 / 3, 2 / 3, 2 / 3, 8 / 3, 8 / 3],
    BottleneckPlan(12, 18, 4): [0.5, 1.5],
    DensePlan(12, 18): [],
}


@pytest.mark.parametrize("plan", EXPECTED, ids=str)
def test_rates_are_those_of_structure_aware_scaling(plan):
    layer = plan.build(0.1, torch.Generator().manual_seed(0))
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"layer": layer})])})
    rates, names = fan_in_rates(factors_of(model)), {p: name for name, p in layer.named_parameters()}
    cores = [f"core_{k}" for k in range(1, len(EXPECTED[plan]) + 1)]
    assert {names[p]: rate for p, rate in rates.items()} == pytest.approx(dict(zip(cores, EXPECTED[plan], strict=True)))


def build(*overrides):
    config = read_config(None, [*TINY, "train.zero_stage=0", *overrides])
    return config, Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("format", ["tensor", "low_rank", "block_train", "bottleneck", "dense"])
def test_only_cores_of_blocks_have_rates_of_their_own(format):
    config, model = build(f"model.format.attention={format}", "optim.core_lr_scale=0.5", "optim.core_rates=fan_in")
    rates, names = fan_in_rates(factors_of(model)), {p: name for name, p in model.named_parameters()}
    groups = parameter_groups(model, config.optim)
    assert len({group["name"] for group in groups}) == len(groups)
    for group in groups:
        for parameter in group["params"]:
            scale = 0.5 if ".core_" in names[parameter] else 1.0
            assert group["lr_scale"] == scale * rates.get(parameter, 1.0)
            assert group["weight_decay"] == (
                0.1 if ".core_" in names[parameter] or "_proj.w" in names[parameter] else 0
            )
    assert {".layers." in names[p] and ".core_" in names[p] for p in rates} == {True}


def test_a_first_step_of_a_core_has_its_rate():
    """AdamW's first update is the learning rate, whatever the gradient."""
    config, model = build("optim.core_rates=fan_in", "optim.weight_decay=0", "optim.eps=1e-20")
    rates, before = fan_in_rates(factors_of(model)), {p: p.detach().clone() for p in model.parameters()}
    optimizer = build_optimizer(model, config.optim)
    for parameter in before:
        parameter.grad = torch.ones_like(parameter)
    set_learning_rate(optimizer.param_groups, 1e-2)
    optimizer.step()
    for parameter, old in before.items():
        step = torch.full_like(old, 1e-2 * rates.get(parameter, 1.0))
        torch.testing.assert_close(old - parameter.detach(), step, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_groups_are_split_where_adamw_steps_the_cores(kind):
    dense = ["model.format.attention=dense", f"optim.kind={kind}"]
    names = {
        rates: {group["name"] for group in parameter_groups(build(*dense)[1], build(*dense, rates)[0].optim)}
        for rates in ("optim.core_rates=equal", "optim.core_rates=fan_in")
    }
    split = names["optim.core_rates=fan_in"] - names["optim.core_rates=equal"]
    assert split
    assert all(name.startswith("cores x ") for name in split)


def test_an_optimizer_that_scales_the_steps_of_cores_itself_refuses_them():
    with pytest.raises(ConfigError, match=r"core_rates = fan_in has no effect on optim\.kind = spectral"):
        build("optim.kind=spectral", "optim.core_rates=fan_in")


def test_a_loop_of_the_users_own_that_adapts_ranks_refuses_them():
    _, model = build()
    with pytest.raises(ConfigError, match=r"core_rates = fan_in, .*; leave core_rates out of adamw\(\)"):
        RankScheduler(model, adamw(model, 1e-3, core_rates="fan_in"), 100)


def scales_by_name(config, model):
    names = {p: name for name, p in model.named_parameters()}
    return {names[p]: group["lr_scale"] for group in parameter_groups(model, config.optim) for p in group["params"]}


@pytest.mark.parametrize("format", ["tensor", "low_rank", "mixed_dimension", "dense"])
@pytest.mark.parametrize("kind", ["adamw", "spectral"])
def test_tables_have_a_rate_of_their_own(kind, format):
    config, model = build(
        f"optim.kind={kind}", f"model.format.embedding={format}", "optim.table_lr_scale=4", "optim.core_lr_scale=0.5"
    )
    scales = scales_by_name(config, model)
    projection = {"low_rank": "core_2", "mixed_dimension": "projection"}.get(format, "none")
    of_table = {name: s for name, s in scales.items() if "embed_tokens" in name and "gate_" not in name}
    kept = {name: of_table.pop(name) for name in list(of_table) if name.endswith(projection)}
    assert set(of_table.values()) == {2.0 if format in ("tensor", "low_rank") else 4.0}
    assert list(kept.values()) == {"low_rank": [0.5], "mixed_dimension": [1.0]}.get(format, [])
    assert max(scale for name, scale in scales.items() if name not in of_table) == 1.0


@pytest.mark.parametrize("format", ["tensor", "low_rank", "dense"])
@pytest.mark.parametrize("kind", ["adamw", "spectral"])
def test_an_untied_head_has_a_rate_of_its_own(kind, format):
    config, model = build(
        f"optim.kind={kind}", f"model.format.head={format}", "optim.head_lr_scale=4", "optim.core_lr_scale=0.5"
    )
    scales = scales_by_name(config, model)
    of_head = {name: scale for name, scale in scales.items() if "lm_head" in name and "gate_" not in name}
    assert set(of_head.values()) == {2.0 if format in ("tensor", "low_rank") else 4.0}
    assert max(scale for name, scale in scales.items() if name not in of_head) == 1.0
