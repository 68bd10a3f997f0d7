"""GaLore and Muon update the dense matrices of blocks as their libraries do alone, and AdamW all else."""

import sys
from types import SimpleNamespace

import pytest
import torch
from support import TINY, VOCAB, WORKLOADS
from torch import nn

from comera_dist.config.optim_section import Optim
from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.groups import idle_rates, parameter_groups, set_learning_rate

KINDS = ["adamw", "galore", "muon", "dion", "soap", "mlorc", "mofasgd"]
DENSE_ATTENTION = ["model.format.attention=dense", "optim.galore={rank: 3, update_every: 2, scale: 0.5}"]
NAMES = ["layer", "layers", "player", "layering"]
RATES = (1e-2, 3e-3, 5e-3, 2e-3, 1e-3)


def needs(kind):
    if kind == "galore":
        pytest.importorskip("galore_torch", reason="galore-torch is not installed", exc_type=ImportError)


def build(kind, *overrides):
    """Attention is dense, the MLPs, the embedding and the head are tensor trains."""
    settings = DENSE_ATTENTION if kind == "galore" else DENSE_ATTENTION[:1]
    config = read_config(None, [*TINY, f"optim.kind={kind}", "train.zero_stage=0", *settings, *overrides])
    model = Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0))
    return config, model


def set_gradients(model, step):
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def is_matrix(name):
    return ".self_attn." in name


@pytest.mark.parametrize("kind", KINDS)
def test_groups_hold_every_parameter_once_and_matrices_are_apart_where_asked_for(kind):
    config, model = build(kind)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = {g["name"]: [names[id(p)] for p in g["params"]] for g in parameter_groups(model, config.optim)}
    assert sorted(name for members in groups.values() for name in members) == sorted(names.values())
    matrices = sorted(filter(is_matrix, names.values()))
    assert len(matrices) == 8
    assert sorted(groups["dense" if kind == "adamw" else "matrices"]) == matrices
    assert ("matrices" in groups) == (kind != "adamw")


@pytest.mark.parametrize("first", ["emb", "lm_head"])
def test_a_table_that_is_also_the_head_is_in_one_group_at_the_rate_of_tables(first):
    parts = {"emb": nn.Embedding(9, 4), "lm_head": nn.Linear(4, 9, bias=False)}
    parts["lm_head"].weight = parts["emb"].weight
    model = nn.ModuleDict({name: parts[name] for name in sorted(parts, reverse=first == "lm_head")})
    (group,) = parameter_groups(model, Optim(table_lr_scale=8, head_lr_scale=2))
    assert (group["name"], group["lr_scale"]) == ("dense x 8.0", 8)
    assert group["params"] == [parts["emb"].weight]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["optim.matrix_lr_scale=2"], ["matrix_lr_scale = 2 has no effect: optim.kind = adamw leaves all to AdamW."]),
        (["optim.matrix_lr_scale=2", "optim.kind=spectral", "optim.table_lr_scale=8"], []),
        (["optim.head_lr_scale=0.5"], ["head_lr_scale = 0.5 has no effect: the model has no output layer of its own."]),
        (["optim.head_lr_scale=0.5", "model.tie_embeddings=false"], []),
        (["optim.core_lr_scale=2"], ["core_lr_scale = 2 has no effect: AdamW steps no cores of the model."]),
        (["optim.core_lr_scale=2", "optim.gate_lr_scale=2", "model.format=tensor"], []),
        (["optim.core_rates=fan_in", "model.format=tensor"], []),
        (
            ["optim.core_rates=fan_in"],
            ["core_rates = fan_in has no effect: no layer in the model's blocks has several cores."],
        ),
        (["optim.gate_lr_scale=2"], ["gate_lr_scale = 2 has no effect: the model has no gates."]),
    ],
)
def test_a_rate_that_no_parameter_has_is_named(overrides, found):
    config = read_config(None, [*TINY, "model.tie_embeddings=true", "model.format=dense", *overrides])
    model = Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0))
    assert idle_rates(parameter_groups(model, config.optim), model, config.optim) == [
        f"optim.{sentence}" for sentence in found
    ]


def test_a_rate_of_tables_is_named_if_there_is_none():
    model, config = nn.Linear(2, 2), Optim(table_lr_scale=4)
    (sentence,) = idle_rates(parameter_groups(model, config), model, config)
    assert sentence == "optim.table_lr_scale = 4 has no effect: the model has no embedding table."


@pytest.mark.parametrize("kind", ["galore", "muon"])
def test_updates_are_those_of_the_library_alone(kind):
    needs(kind)
    config, model = build(kind)
    _, twin = build(kind)
    optimizer = build_optimizer(model, config.optim)
    oracles = [library(kind, twin), plain_adamw(twin)]
    for step, lr in enumerate(RATES):
        set_gradients(model, step)
        set_gradients(twin, step)
        set_learning_rate(optimizer.param_groups, lr)
        optimizer.step()
        for oracle in oracles:
            for group in oracle.param_groups:
                group["lr"] = lr
            oracle.step()
        expected = dict(twin.named_parameters())
        assert all(torch.equal(p, expected[name]) for name, p in model.named_parameters())


def library(kind, model):
    matrices = [p for name, p in model.named_parameters() if is_matrix(name)]
    if kind == "muon":
        return torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    from galore_torch import GaLoreAdamW

    group = {"params": matrices, "rank": 3, "update_proj_gap": 2, "scale": 0.5, "proj_type": "std"}
    settings = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "no_deprecation_warning": True}
    return GaLoreAdamW([group], **settings)


def plain_adamw(model):
    others = {name: p for name, p in model.named_parameters() if not is_matrix(name)}
    decaying = [p for name, p in others.items() if ".core_" in name]
    rest = [p for name, p in others.items() if ".core_" not in name]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)


def test_an_update_of_muon_has_one_root_mean_square_whatever_the_matrix():
    """0.2 times the learning rate, as that of AdamW in training (Liu et al. 2025)."""
    config, model = build("muon", "model.format.mlp=dense", "optim.weight_decay=0", "optim.lr=1")
    matrices = {name: p for name, p in model.named_parameters() if is_matrix(name) or ".mlp." in name}
    before = {name: p.detach().clone() for name, p in matrices.items()}
    set_gradients(model, 0)
    build_optimizer(model, config.optim).step()
    assert {tuple(p.shape) for p in matrices.values()} == {(16, 16), (16, 24), (24, 16)}
    for name, matrix in matrices.items():
        assert (matrix - before[name]).square().mean().sqrt().item() == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_state_is_laid_out_as_the_first_step_makes_it(kind):
    needs(kind)
    config, model = build(kind, "model.kv_heads=1")
    optimizer = build_optimizer(model, config.optim)
    set_gradients(model, 0)
    optimizer.step()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            made, blank = optimizer.state[parameter], group["method"].blank(parameter, step=1)
            assert blank.keys() == made.keys()
            assert blank.get("step") == made.get("step")
            assert type(blank.get("step")) is type(made.get("step"))
            kept = [group["method"].tensors(state) for state in (made, blank)]
            layouts = [{k: (t.shape, t.stride()) for k, t in tensors.items()} for tensors in kept]
            assert layouts[0] == layouts[1]
            assert {k: t.shape for k, t in kept[0].items()} == group["method"].shapes(tuple(parameter.shape))
            if "projector" in made:
                fixed = [{k: v for k, v in vars(s["projector"]).items() if k != "ortho_matrix"} for s in (made, blank)]
                assert fixed[0] == fixed[1]


@pytest.mark.parametrize("kind", ["galore", "muon"])
def test_a_model_without_dense_matrices_in_blocks_is_refused(kind):
    # The rule might match a layer of a block, so only the model tells that it does not.
    rule = "tensor.layers=[{match: lm_head, format: dense}]"
    config, model = build(kind, "model.format.attention=tensor", rule)
    with pytest.raises(ConfigError, match=rf"optim.kind = {kind} updates the dense .* model.format.mlp=dense"):
        build_optimizer(model, config.optim)


def test_a_missing_package_is_one_sentence(monkeypatch):
    config, model = build("galore")
    monkeypatch.setitem(sys.modules, "galore_torch", None)
    with pytest.raises(ConfigError, match=r"galore-torch was not found .*pip install .*\[bench\]"):
        build_optimizer(model, config.optim)


def test_a_block_is_told_by_its_name():
    config, _ = build("muon")
    blocks = nn.ModuleDict({kind: nn.ModuleList([nn.ModuleDict({"query": nn.Linear(4, 4)})]) for kind in NAMES})
    groups = {group["name"]: group["params"] for group in parameter_groups(blocks, config.optim)}
    assert [id(p) for p in groups["matrices"]] == [id(blocks[kind][0]["query"].weight) for kind in NAMES[:2]]


def workload(name):
    config = read_config(None, [*WORKLOADS[name], "model.format=dense", "optim.kind=muon", "train.zero_stage=0"])
    facts = SimpleNamespace(vocab_size=VOCAB, classes=3, dense_features=2, table_rows=(9, 30))
    return config, build_model(config.model, plan_model(config, facts), torch.Generator().manual_seed(0))


def test_the_matrices_of_an_encoder_are_those_of_its_blocks_without_biases():
    config, model = workload("classifier")
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, config.optim)
    groups = {group["name"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups}
    assert len(groups["matrices"]) == 2 * 6
    assert all(".layer." in name and name.endswith(".weight") for name in groups["matrices"])
    assert {"bert.pooler.dense.weight", "bert.embeddings.word_embeddings.weight"} <= groups["dense"]
    assert sum(map(len, groups.values())) == len(names)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="dense matrices of transformer blocks and the model has none"):
        workload("dlrm")
