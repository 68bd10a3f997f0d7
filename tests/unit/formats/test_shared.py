"""Matrices that blocks share: weights beside their definition, which blocks share, and what is stored."""

import copy

import pytest
import torch
from support import FACTS, TINY, VOCAB, WORKLOADS
from torch.nn import functional as F

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.errors import ConfigError
from comera_dist.formats.convert import LinearFormat, densify, tensorize
from comera_dist.formats.plan import read_plan, write_plan
from comera_dist.formats.shared import SharedPlan
from comera_dist.formats.shared_layers import SharedLinear, first_mixture
from comera_dist.models.family import build_model, plan_model
from comera_dist.models.shared_matrices import sharing
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.groups import parameter_groups

SHARED = ["model.format={attention: shared, mlp: shared, embedding: dense, head: dense}", "model.layers=4"]
THREE_IN_MLP = "tensor.layers=[{match: '*.mlp.*', options: {matrices: 3}}]"


def built(*overrides, kind=TINY):
    """A configuration, its plan, and a model that has trained: no mixture is at its first value."""
    config = read_config(None, [*kind, *SHARED, *overrides])
    plan = plan_model(config, FACTS)
    generator = torch.Generator().manual_seed(0)
    model = build_model(config.model, plan, generator)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return config, plan, model


def definition(model, block, name):
    """W_l as a sum over the matrices of the first blocks."""
    layers = [model.get_submodule(f"model.layers.{index}.{name}") for index in range(4)]
    mixture = layers[block].mixture
    return sum(mixture[a] * layers[a].shared.weight for a in range(len(mixture)))


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_a_weight_is_the_mixture_of_the_matrices_of_the_first_blocks(matrices):
    _, _, model = built(f"tensor.shared.matrices={matrices}")
    for block in range(4):
        for name in ("self_attn.k_proj", "mlp.down_proj"):
            layer = model.get_submodule(f"model.layers.{block}.{name}")
            assert (layer.shared is not None) == (block < matrices)
            torch.testing.assert_close(layer.to_dense(), definition(model, block, name))
            x = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(1))
            torch.testing.assert_close(layer(x), F.linear(x, definition(model, block, name)))
            assert layer(x, then=lambda x, weight: weight).shape == (layer.out_features, layer.in_features)


def test_the_gradient_of_a_shared_matrix_sums_over_all_blocks():
    _, _, model = built("tensor.shared.matrices=2")
    dense = densify(copy.deepcopy(model))
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    for one in (model, dense):
        one(tokens, tokens.roll(1, 1)).backward()
    layers = [model.get_submodule(f"model.layers.{index}.mlp.up_proj") for index in range(4)]
    gradients = [dense.get_submodule(f"model.layers.{index}.mlp.up_proj").weight.grad for index in range(4)]
    for a in range(2):
        expected = sum(layer.mixture[a] * gradient for layer, gradient in zip(layers, gradients, strict=True))
        torch.testing.assert_close(layers[a].shared.weight.grad, expected, rtol=1e-4, atol=1e-6)
    for layer, gradient in zip(layers, gradients, strict=True):
        expected = torch.stack([(gradient * layers[a].shared.weight).sum() for a in range(2)])
        torch.testing.assert_close(layer.mixture.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["masked_lm", "classifier"])
def test_the_dense_copy_of_an_encoder_computes_the_same(kind):
    """Its layers have biases."""
    config, _, model = built("tensor.shared.matrices=2", "model.format.head=dense", kind=WORKLOADS[kind])
    tokens = torch.randint(1, VOCAB, (2, 8), generator=torch.Generator().manual_seed(1))
    places = (torch.zeros(2, 1, dtype=torch.long),) if config.model.head == "masked_lm" else ()
    inputs = (tokens, torch.zeros_like(tokens), *places)
    expected = model.eval()(*inputs)
    dense = densify(model)
    torch.testing.assert_close(dense(*inputs), expected)
    assert not any(isinstance(layer, SharedLinear) for layer in dense.modules())


def test_a_matrix_is_stored_once_and_counted_once():
    config, plan, model = built("tensor.shared.matrices=2")
    names = [name for name, _ in model.named_parameters() if ".q_proj." in name]
    assert names == [
        "model.layers.0.self_attn.q_proj.mixture",
        "model.layers.0.self_attn.q_proj.shared.weight",
        "model.layers.1.self_attn.q_proj.mixture",
        "model.layers.1.self_attn.q_proj.shared.weight",
        "model.layers.2.self_attn.q_proj.mixture",
        "model.layers.3.self_attn.q_proj.mixture",
    ]
    costs = estimate(config, plan, 1, 128)
    assert costs.params == sum(parameter.numel() for parameter in model.parameters())
    dense = read_config(None, [*TINY, "model.format=dense", "model.layers=4"])
    twin = estimate(dense, plan_model(dense, FACTS), 1, 128)
    assert costs.dense_params == twin.params
    assert costs.dense_flops_per_token == twin.flops_per_token
    mixing = 3 * sum(2 * 2 * layer.dense_parameters for layer in plan.values() if isinstance(layer, SharedPlan)) / 128
    assert costs.flops_per_token == pytest.approx(twin.flops_per_token + mixing)
    for name, layer in plan.items():
        for part, shape in layer.tensors.items():
            assert tuple(model.get_parameter(f"{name}.{part}").shape) == shape
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize(
    ("blocks", "matrices", "expected"),
    [
        (3, 1, "1 1 1"),
        (6, 2, "10 01 ++ +- ++ +-"),
        (8, 3, "100 010 001 ++0 0++ +-0 0+- ++0"),
        (4, 4, "1000 0100 0010 0001"),
    ],
)
def test_blocks_start_with_single_matrices_then_sums_then_differences(blocks, matrices, expected):
    numbers = {"1": 1.0, "0": 0.0, "+": 0.5**0.5, "-": -(0.5**0.5)}
    plans = [SharedPlan(6, 8, matrices=matrices, place=place) for place in range(1, blocks + 1)]
    mixtures_LA = torch.stack([first_mixture(plan) for plan in plans])
    torch.testing.assert_close(mixtures_LA, torch.tensor([[numbers[c] for c in word] for word in expected.split()]))


def test_a_rule_sets_the_number_of_some_layers():
    _, plan, _ = built(THREE_IN_MLP)
    groups = [tuple(group) for group in sharing(plan)]
    found = {names: plan[names[0]].matrices for names in groups}
    assert len(found) == 7
    for names, matrices in found.items():
        assert len(names) == 4
        assert matrices == (3 if ".mlp." in names[0] else 1)
        assert [plan[name].place for name in names] == [1, 2, 3, 4]


def test_blocks_of_other_plans_share_apart():
    _, plan, model = built("tensor.layers=[{match: 'model.layers.[01].*', format: dense}]", "tensor.shared.matrices=2")
    groups = sharing(plan)
    assert [name.split(".")[2] for names in groups for name in names] == ["2", "3"] * 7
    assert model.get_submodule("model.layers.2.mlp.up_proj").shared is not None


def test_a_new_model_starts_with_these_mixtures():
    config = read_config(None, [*TINY, *SHARED, "tensor.shared.matrices=2"])
    model = build_model(config.model, plan_model(config, FACTS), torch.Generator().manual_seed(0))
    one, other, third, fourth = (model.get_submodule(f"model.layers.{index}.mlp.up_proj") for index in range(4))
    a, b = one.shared.weight, other.shared.weight
    for layer, weight in ((one, a), (other, b), (third, (a + b) / 2**0.5), (fourth, (a - b) / 2**0.5)):
        torch.testing.assert_close(layer.to_dense(), weight)


@pytest.mark.parametrize("kind", ["spectral", "muon", "adamw", "galore"])
def test_an_optimizer_steps_each_matrix_once_and_no_mixture_decays(kind):
    config, _, model = built(f"optim.kind={kind}", "train.zero_stage=0", "tensor.shared.matrices=2")
    groups = parameter_groups(model, config.optim)
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_group = {group["name"]: [names[p] for p in group["params"]] for group in groups}
    matrices = [name for name in by_group["dense" if kind == "adamw" else "matrices"] if "shared" in name]
    assert len(matrices) == len(set(matrices)) == 2 * 7
    assert sum(name.endswith("mixture") for name in by_group["no_decay"]) == 4 * 7
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    if kind != "galore":
        optimizer = build_optimizer(model, config.optim)
        tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
        model(tokens, tokens.roll(1, 1)).backward()
        optimizer.step()
        assert all(not torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.format.head=shared"], "lm_head has the format shared, but only the blocks of a model share matrices"),
        (["tensor.shared.matrices=5"], "shares 5 matrices with 4 blocks in all, expected at most one for each block"),
        (["model.format.embedding=shared"], "this format stores no tables"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        built(*overrides)


def test_a_single_layer_cannot_share():
    with pytest.raises(ConfigError, match="needs the blocks of a configured model"):
        tensorize(torch.nn.Linear(4, 4), {"*": LinearFormat("shared")})


@pytest.mark.parametrize("wrong", [{"matrices": 0}, {"place": 0}])
def test_a_plan_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="cannot be; take at least one matrix, and count blocks from 1"):
        SharedPlan(4, 4, **wrong)
