"""An optimizer that is added from outside is one file: its keys, its checks, its groups and its memory come with it."""

import pytest
import torch
from added_optimizer import HeavyBall, Normalized, Settings, added
from support import TINY, VOCAB

from comera_dist.config.optim_section import Optim
from comera_dist.config.reader import read_config
from comera_dist.config.registry import OPTIMIZERS
from comera_dist.costs.estimate import estimate
from comera_dist.errors import ConfigError
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.base import MEAN, SQUARE
from comera_dist.optim.build import build_optimizer, roles


@pytest.fixture(autouse=True)
def known():
    with added():
        yield


def build(*overrides):
    config = read_config(None, [*TINY, "optim.kind=heavy_ball", *overrides])
    plan = plan_decoder(config, VOCAB)
    return config, plan, Decoder(config.model, plan, torch.Generator().manual_seed(0))


def set_gradients(model):
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        read_config(None, [*TINY, *overrides])
    return str(caught.value).splitlines()


def test_its_settings_are_read_kept_and_refused_as_all_others():
    config = read_config(None, [*TINY, "optim.kind=heavy_ball", "optim.heavy_ball.momentum=0.5"])
    assert config.optim.own("heavy_ball", Settings).momentum == 0.5
    assert config.model_dump()["optim"]["heavy_ball"] == {"momentum": 0.5}
    assert type(config).model_validate(config.model_dump()) == config
    assert problems("optim.heavy_ball.momentum=0.5") == [
        "optim.heavy_ball has no effect while optim.kind is adamw; set optim.kind=heavy_ball or remove it"
    ]
    assert problems("optim.kind=heavy_ball", "optim.heavy_ball.momentun=0.5", "train.cuda_graphs=true") == [
        "optim.heavy_ball.momentun is not a known key; did you mean optim.heavy_ball.momentum?",
        "optim.kind = heavy_ball cannot be captured; set optim.kind=adamw or train.cuda_graphs=false",
    ]


def test_its_settings_are_in_the_schema_of_the_section():
    schema = Optim.model_json_schema()
    assert {"lr", "galore", "heavy_ball"} <= schema["properties"].keys()
    assert schema["properties"]["heavy_ball"]["properties"]["momentum"]["default"] == 0.9
    assert not schema["additionalProperties"]


def test_it_steps_the_cores_and_adamw_all_else():
    config, _, model = build()
    twin = build()[2]
    optimizer = build_optimizer(model, config.optim)
    cores = [p for name, p in twin.named_parameters() if ".core_" in name]
    others = [p for name, p in twin.named_parameters() if ".core_" not in name]
    oracles = [Normalized([{"params": cores}], config.optim.lr, 0.9)]
    oracles.append(torch.optim.AdamW(others, config.optim.lr, betas=(0.9, 0.95), weight_decay=0.0))
    for _ in range(3):
        set_gradients(model)
        set_gradients(twin)
        for one in (optimizer, *oracles):
            one.step()
    assert all(torch.equal(mine, other) for mine, other in zip(model.parameters(), twin.parameters(), strict=True))


def test_its_memory_is_estimated():
    config, plan, model = build("train.zero_stage=0")
    set_gradients(model)
    optimizer = build_optimizer(model, config.optim)
    optimizer.step()
    states = [(group["method"], optimizer.state[p]) for group in optimizer.param_groups for p in group["params"]]
    kept = sum(t.numel() for method, state in states for t in method.tensors(state).values())
    figures = estimate(config, plan, 1, 64)
    assert figures.state_bytes_per_process == 4 * (2 * figures.params + kept)
    cores = {name: p.numel() for name, p in model.named_parameters() if ".core_" in name}
    assert kept == 2 * figures.params - sum(cores.values())


def test_a_model_that_it_finds_nothing_in_is_refused():
    with pytest.raises(ConfigError, match=r"heavy_ball updates cores and the model has none; set"):
        build("model.format=dense")
    # This table stays dense, because it is small: only the model tells.
    config, _, model = build("model.format=dense", "model.format.embedding=tensor", "tensor.embedding_min_rows=1000")
    with pytest.raises(ConfigError, match=r"heavy_ball updates cores and the model has none; set"):
        build_optimizer(model, config.optim)


def test_roles_are_those_of_all_optimizers_of_the_run():
    config, _, _ = build()
    assert roles(config.optim) == {"exp_avg": MEAN, "exp_avg_sq": SQUARE, "momentum_buffer": MEAN}
    assert OPTIMIZERS["heavy_ball"] is HeavyBall


@pytest.mark.parametrize("rate", ["1", "8"])
def test_a_group_with_a_rate_of_its_own_is_still_its_own(monkeypatch, rate):
    monkeypatch.setattr(HeavyBall, "takes", ("cores", "dense"))
    config, _, model = build(f"optim.table_lr_scale={rate}", "model.format.embedding=tensor")
    groups = build_optimizer(model, config.optim).param_groups
    assert {group["method"].name for group in groups if "core" in group["name"]} == {"heavy_ball"}
    scales = {group["lr_scale"] for group in groups if "core" in group["name"]}
    assert scales == {1.0, float(rate)}


def test_it_cannot_take_gates_that_adapt(monkeypatch):
    monkeypatch.setattr(HeavyBall, "takes", ("cores", "gates"))
    assert problems("optim.kind=heavy_ball", "ranks.adapt=true", "ranks.sync_every=4") == [
        "optim.kind = heavy_ball updates gates, and ranks.adapt = true needs AdamW's steps of them; set "
        "ranks.adapt=false or optim.kind=adamw"
    ]


def test_ranks_cannot_adapt_where_its_state_has_other_shapes(monkeypatch):
    monkeypatch.setattr(HeavyBall, "shapes", lambda self, shape: {"momentum_buffer": shape[:1]})
    assert problems("optim.kind=heavy_ball", "ranks.adapt=true", "ranks.sync_every=4") == [
        "optim.kind = heavy_ball keeps of cores what has not their shape, which ranks.adapt = true could not cut; set "
        "ranks.adapt=false or optim.kind=adamw"
    ]


def test_moments_that_are_rounded_need_a_count_of_steps(monkeypatch):
    """The count decides the random numbers: without one, all steps would round alike, and small changes be lost."""
    monkeypatch.setattr(HeavyBall, "can_round", True)
    config, _, model = build("optim.moments=bf16")
    optimizer = build_optimizer(model, config.optim)
    set_gradients(model)
    with pytest.raises(ConfigError, match=r"heavy_ball keeps moments in bf16 and no `step` in its state"):
        optimizer.step()
