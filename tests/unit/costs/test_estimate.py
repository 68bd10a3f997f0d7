"""The estimate against the model that is really built."""

import json
from collections import Counter

import pytest
import torch
from support import TINY, VOCAB
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import bond_ranks, estimate, mean_rank, with_teacher
from comera_dist.formats.plan import read_plan, write_plan
from comera_dist.formats.tensor_train.contraction_plan import padded_rank
from comera_dist.formats.tensor_train.shapes import TTShape
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.models.family import build_model
from comera_dist.models.shared_matrices import placed
from comera_dist.optim.build import build_optimizer
from comera_dist.runtime.sharing import deal_out


def build(*overrides):
    config = read_config(None, [*TINY, *overrides])
    plan = placed(plan_decoder(config, VOCAB))
    return config, plan, build_model(config.model, plan, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.format=dense"],
        ["model.tie_embeddings=true"],
        ["model.kv_heads=1", "tensor.order=3"],
        ["model.bigram_rows=90"],
        ["model.gated_attention=true"],
    ],
)
def test_parameters_are_those_of_the_model(overrides):
    config, plan, model = build(*overrides)
    figures = estimate(config, plan, 2, 64)
    assert figures.params == sum(p.numel() for p in model.parameters())
    assert figures.size_bytes == sum(p.numel() * p.element_size() for p in model.parameters())
    dense = build(*overrides, "model.format=dense")[2]
    assert figures.dense_params == sum(p.numel() for p in dense.parameters())
    assert figures.compression == pytest.approx(figures.dense_params / figures.params)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.format=dense"],
        ["tensor.rank=16", "model.gated_attention=true"],
        ["tensor.rank=20", "model.d_model=32", "model.d_ff=48"],
        ["tensor.rank=16", "tensor.outer_rank=8", "tensor.order=3"],
        ["tensor.rank=16", "model.tie_embeddings=true", "tensor.embedding_rank=32"],
    ],
    ids=str,
)
def test_flops_of_a_forward_pass_are_counted_ones(overrides):
    config, plan, model = build("data.seq_len=32", *overrides)
    ranks = [layer.middle_rank for layer in plan.values() if isinstance(layer, TTShape)]
    assert ranks == [padded_rank(rank, "cpu") for rank in ranks]  # the estimate does not count padding
    tokens = torch.arange(4 * 32).remainder(VOCAB).reshape(4, 32)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens)
    # Attention is counted whole here and half in the estimate (a causal token sees half of the others on average).
    attention = config.model.layers * 2 * 32 * config.model.d_model * tokens.numel()
    expected = estimate(config, plan, 1, tokens.numel()).flops_per_token / 3 * tokens.numel()
    assert counter.get_total_flops() == pytest.approx(expected + attention, rel=0.02)


@pytest.mark.parametrize(("stage", "numbers"), [(0, 4), (1, 2 + 3 / 4), (2, 1 + 4 / 4), (3, 5 / 4)])
def test_zero_stages_shard_what_they_say(stage, numbers):
    config, plan, _ = build(f"train.zero_stage={stage}")
    figures = estimate(config, plan, 4, 64)
    assert figures.state_bytes_per_process == pytest.approx(4 * figures.params * numbers, abs=1)


RIVALS = ["galore", "fira", "apollo", "apollo_mini", "gum", "relora", "dion", "soap", "mlorc", "mofasgd"]
MLPS = [(kind, format) for kind in ("adamw", "muon", *RIVALS) for format in ("dense", "tensor")]


@pytest.mark.parametrize(("kind", "format"), [*MLPS, ("loro", "low_rank")])
def test_the_optimizers_numbers_are_those_that_it_keeps(kind, format):
    if kind == "galore":
        pytest.importorskip("galore_torch", reason="galore-torch is not installed", exc_type=ImportError)
    settings = ["model.format.attention=dense", f"model.format.mlp={format}", f"optim.kind={kind}"]
    settings += [f"optim.{kind}.rank=9"] if kind in ("galore", "fira", "apollo", "gum") else []
    settings += ["optim.relora.full_rank_steps=0"] if kind == "relora" else []
    # Keys and values of one head are 16 → 8.
    config, plan, model = build("train.zero_stage=0", "model.kv_heads=1", *settings)
    optimizer = build_optimizer(model, config.optim)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    states = [(group["method"], optimizer.state[p]) for group in optimizer.param_groups for p in group["params"]]
    kept = sum(t.untyped_storage().nbytes() for method, state in states for t in method.tensors(state).values())
    figures = estimate(config, plan, 1, 64)
    assert figures.state_bytes_per_process == 8 * figures.params + kept


@pytest.mark.parametrize("format", ["dense", "{rest: shared, embedding: dense, head: dense}"])
def test_state_whose_size_changes_is_estimated_where_it_is_largest(format):
    gum = [f"model.format={format}", "optim.kind=gum", "optim.gum={rank: 9, update_every: 2, full_share: 0.5}"]
    config, plan, model = build("train.zero_stage=0", "train.steps=6", *gum)
    optimizer, kept = build_optimizer(model, config.optim), []
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        states = [(group["method"], optimizer.state[p]) for group in optimizer.param_groups for p in group["params"]]
        kept.append(sum(t.numel() for method, state in states for t in method.tensors(state).values()))
    figures = estimate(config, plan, 1, 64)
    assert len(set(kept)) == 3
    assert figures.state_bytes_per_process == 4 * (2 * figures.params + max(kept))


def test_whole_matrices_are_dealt_out_by_their_size_whatever_is_kept_of_them():
    settings = ["model.format=dense", "model.kv_heads=1", "optim.kind=apollo", "optim.apollo.rank=3"]
    config, plan, model = build("train.zero_stage=1", *settings)
    matrices = {name: p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}
    sizes = {name: p.numel() for name, p in matrices.items()}
    owners, kept = deal_out(sizes, 4), {name: 2 * 3 * max(p.shape) + 1 for name, p in matrices.items()}
    fullest = max(sum(kept[name] for name in kept if owners[name] == owner) for owner in range(4))
    figures = estimate(config, plan, 4, 64)
    sliced = 2 * (figures.params - sum(sizes.values())) + figures.params  # AdamW's moments, and all masters
    assert figures.state_bytes_per_process == pytest.approx(4 * (2 * figures.params + sliced / 4 + fullest), abs=4)


@pytest.mark.parametrize("kind", ["spectral", "loro"])
def test_factors_of_a_layer_are_dealt_to_one_process(kind):
    config, plan, model = build("train.zero_stage=1", "model.format.mlp=low_rank", f"optim.kind={kind}")
    sizes, kept, all_kept = Counter(), Counter(), 0
    for group in build_optimizer(model, config.optim).param_groups:
        for p in group["params"]:
            numbers = group["method"].numbers(tuple(p.shape))
            all_kept += numbers
            if group["method"].needs_whole:
                unit = group["method"].unit_of(p)
                sizes[unit], kept[unit] = sizes[unit] + p.numel(), kept[unit] + numbers
    owners = deal_out(sizes, 4)
    fullest = max(sum(kept[unit] for unit in kept if owners[unit] == owner) for owner in range(4))
    figures = estimate(config, plan, 4, 64)
    sliced = all_kept - sum(kept.values()) + figures.params
    assert figures.state_bytes_per_process == pytest.approx(4 * (2 * figures.params + sliced / 4 + fullest), abs=4)


def test_ring_all_reduce_sends_each_gradient_almost_twice():
    config, plan, _ = build()
    assert estimate(config, plan, 4, 64).gradient_bytes_per_step == pytest.approx(
        2 * 3 / 4 * 4 * estimate(config, plan, 4, 64).params
    )
    assert estimate(config, plan, 1, 64).gradient_bytes_per_step == 0


def test_the_dense_twin_learns_from_the_same_teacher():
    (config, plan, _), (larger, of_teacher, _) = build(), build("model.d_model=32")
    alone, teacher = estimate(config, plan, 1, 64), estimate(larger, of_teacher, 1, 64)
    taught = with_teacher(alone, teacher)
    added = taught.flops_per_token - alone.flops_per_token
    assert taught.dense_flops_per_token - alone.dense_flops_per_token == added == teacher.flops_per_token / 3


def test_json_has_every_figure():
    config, plan, _ = build()
    figures = estimate(config, plan, 4, 64)
    written = json.loads(json.dumps(figures.to_json()))
    assert written == {name: getattr(figures, name) for name in dir(figures) if name[0] != "_" and name != "to_json"}
    matrices = [layer.parameters for layer in plan.values()]
    dense = [layer.dense_parameters for layer in plan.values()]
    assert written["matrix_compression"] == pytest.approx(sum(dense) / sum(matrices))


def test_plan_survives_json():
    _, plan, _ = build()
    assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan


def test_ranks_of_a_dense_model_are_none():
    _, plan, _ = build("model.format=dense")
    assert bond_ranks(plan) == {}
    assert mean_rank(plan) == 0


def test_dense_twin_of_llama_7b_has_its_published_size():
    shape = ["model.d_model=4096", "model.layers=32", "model.heads=32", "model.d_ff=11008"]
    config = read_config(None, [*shape, "train.steps=1", "tensor.rank=1024", "tensor.outer_rank=64"])
    figures = estimate(config, plan_decoder(config, 32000), 8, 8192)
    assert figures.dense_params == 6_738_415_616
    assert figures.params < figures.dense_params / 10
