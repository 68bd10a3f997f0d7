"""Low rank plus sparse: the fast product beside a weight that is built entry by entry, and what a layer holds.

Shapes: N inputs, M outputs, R rank, K entries of S, T tokens.
"""

from functools import partial

import numpy as np
import pytest
import torch
from support import FACTS, TINY
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.live_memory import LiveBytes
from comera_dist.costs.memory import estimate_memory
from comera_dist.errors import ConfigError
from comera_dist.formats.sltrain import SLTRAIN, SLTrainLinear, SLTrainOptions, SLTrainPlan
from comera_dist.formats.sparse_weight import place_type, random_support
from comera_dist.models.checkpointed_block import LEAST_SUM, _policy
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim.groups import parameter_groups

N, M, T = 18, 10, 7
WIDE = 1000
PLAN = SLTrainPlan(N, M, 4, 37, 3)
FORMAT = ["model.format={rest: sltrain, embedding: dense}", "tensor.sltrain.rank=4", "tensor.sltrain.sparsity=0.1"]


def built(plan=PLAN, bias=True):
    """A layer that has trained: no part is at its first value."""
    generator = torch.Generator().manual_seed(3)
    layer = plan.build(0.3, generator, bias)
    for parameter in layer.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return layer


def slow_weight(layer):
    """W (M, N) as sums of numbers, differentiable."""
    plan, places = layer.plan, {int(place): k for k, place in enumerate(layer.support)}

    def entry(i, j):
        low = plan.scale * sum(layer.core_1[i, r] * layer.core_2[r, j] for r in range(plan.rank))
        place = i * plan.outputs + j
        return low + layer.values[places[place]] if place in places else low

    return torch.stack([torch.stack([entry(i, j) for i in range(plan.inputs)]) for j in range(plan.outputs)])


def outcome(layer, compute):
    """y, and the gradients of x and of all parameters."""
    generator = torch.Generator().manual_seed(5)
    x, weight_of_y = (torch.randn(2, T, size, generator=generator).to(layer.values.dtype) for size in (N, M))
    y = compute(x.requires_grad_())
    return y, *torch.autograd.grad(y, [x, *layer.parameters()], weight_of_y.to(y.dtype))


def assert_same(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_and_its_gradients_are_those_of_the_definition(bias):
    layer = built(bias=bias).double()
    expected = outcome(layer, lambda x: F.linear(x, slow_weight(layer), layer.bias))
    assert_same(outcome(layer, layer), expected)
    assert_same(outcome(layer, lambda x: F.linear(x, layer.to_dense(), layer.bias)), expected)


def test_a_compiled_layer_is_one_graph_and_computes_the_same():
    layer = built()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same(outcome(layer, compiled), outcome(layer, layer))


def test_under_autocast_products_are_in_bf16_and_gradients_in_fp32():
    layer = built()
    expected = outcome(layer, layer)
    with torch.autocast("cpu", torch.bfloat16):
        y, *gradients = outcome(layer, layer)
        dense = layer.to_dense()
    assert y.dtype == torch.bfloat16
    assert dense.dtype == torch.float32
    assert_same([y.float(), *gradients], expected, rtol=0.03, atol=0.05)


def test_the_support_is_a_random_set_that_follows_from_the_sizes():
    support = random_support(64, 48, 300)
    assert len(set(support.tolist())) == 300
    assert (np.diff(support) > 0).all()
    assert support.min() >= 0
    assert support.max() < 64 * 48
    assert sorted(random_support(9, 7, 63).tolist()) == list(range(63))
    random_support.cache_clear()
    assert (random_support(64, 48, 300) == support).all()
    assert set(random_support(48, 64, 300).tolist()) != set(support.tolist())
    # All quarters of the matrix hold a quarter of the entries, to four standard deviations.
    counts = np.bincount(random_support(64, 48, 1600) * 4 // (64 * 48))
    assert abs(counts - 400).max() < 4 * (1600 * 3 / 16) ** 0.5
    assert place_type(2**31 - 1) is np.int32
    assert place_type(2**31) is np.int64


def test_places_outlive_memory_without_values_and_averages_of_models():
    layer, other = built(), built().to("meta").to_empty(device="cpu")
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.to_dense(), layer.to_dense())
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(2):
        average.update_parameters(layer)
    torch.testing.assert_close(average.module.to_dense(), layer.to_dense())


def test_the_first_values_are_those_of_the_authors():
    plan = SLTRAIN.plan_linear(64, 48, SLTrainOptions(rank=8))
    layer = plan.build(0.02, torch.Generator().manual_seed(0))
    assert (plan.rank, plan.entries, plan.scale) == (8, 92, 32 / 8)
    for part in (layer.core_1, layer.values):
        assert 0.9 / 8 < float(part.detach().abs().max()) <= 1 / 8
    assert not layer.core_2.any()
    assert SLTRAIN.plan_linear(6, 4, SLTrainOptions(rank=9, alpha=2)).scale == 2 / 4  # of the rank that the layer has
    assert SLTRAIN.plan_linear(2, 2, SLTrainOptions(rank=1)).entries == 1


def test_a_weight_is_taken_over_as_a_truncated_svd_and_its_error_at_the_support():
    weight = torch.randn(M, N, generator=torch.Generator().manual_seed(1))
    layer = PLAN.from_dense(weight, torch.ones(M))
    U, S, Vh = torch.linalg.svd(weight)
    low = U[:, :4] * S[:4] @ Vh[:4]
    error, others = (layer.to_dense() - weight).T.flatten(), (low - weight).T.flatten()
    others[layer.support] = 0
    torch.testing.assert_close(error, others, atol=1e-5, rtol=0)
    torch.testing.assert_close(layer.core_1.norm(), layer.core_2.norm())
    assert bool((layer.bias == 1).all())
    with pytest.raises(ConfigError):
        PLAN.from_dense(weight.T)


@pytest.mark.parametrize(("rank", "entries"), [(0, 3), (2, 0), (2, N * M + 1)])
def test_a_plan_that_does_not_fit_is_refused(rank, entries):
    with pytest.raises(ConfigError, match=f"rank {rank} and {entries} sparse entries do not fit 18 x 10; take"):
        SLTrainPlan(N, M, rank, entries, 1)


def wide():
    """A layer whose weight is larger than all that it may keep, and an input; the rank is a long sum."""
    plan = SLTrainPlan(WIDE, WIDE, LEAST_SUM, 100, 13)
    return built(plan, bias=False), torch.randn(3, WIDE, requires_grad=True)


def test_the_backward_pass_keeps_no_weight():
    (layer, x), kept = wide(), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        layer(x)
    parts = [x, layer.core_1, layer.core_2, layer.values, layer.support]
    assert sorted(t.numel() for t in kept.values()) == sorted(part.numel() for part in parts)


def test_selective_recomputation_keeps_no_weight_either():
    layer, x = wide()
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    with LiveBytes() as live:
        checkpoint(layer, x, use_reentrant=False, context_fn=contexts).sum()
        assert live.now < 4 * WIDE**2 <= live.peak


def test_the_backward_pass_holds_one_weight_at_a_time():
    layer, x = wide()
    y = layer(x).sum()
    with LiveBytes() as live:
        y.backward()
    assert 4 * WIDE**2 <= live.peak < 2 * 4 * WIDE**2


@pytest.mark.parametrize("is_head", [False, True])
def test_flops_are_those_that_are_computed(is_head):
    layer, x = built(bias=False), torch.randn(T, N, requires_grad=True)

    def added_in_place(total, left, right, **_):
        return 2 * left[0] * left[1] * right[1]

    counted = {torch.ops.aten.addmm_: added_in_place}
    with FlopCounterMode(display=False, custom_mapping=counted) as forward:
        y = layer(x, F.linear if is_head else None)
    with FlopCounterMode(display=False, custom_mapping=counted) as backward:
        y.sum().backward()
    assert forward.get_total_flops() == PLAN.forward_flops(T)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert both == PLAN.step_cost(T, "cpu", 4, is_head).flops


def test_the_estimate_is_what_a_model_holds():
    config = read_config(None, [*TINY, *FORMAT, "train.zero_stage=0"])
    plan = plan_model(config, FACTS)
    model = build_model(config.model, plan, torch.Generator())
    figures = estimate(config, plan, 1, 64)
    assert figures.params == sum(p.numel() for p in model.parameters())
    held = sum(layer.support.nbytes for layer in model.modules() if isinstance(layer, SLTrainLinear))
    held += sum(buffer.nbytes for buffer in model.buffers())
    assert held == sum(layer.buffer_bytes for layer in plan.values()) > 0
    assert estimate_memory(config, plan, figures, 1).update_peak == 5 * figures.size_bytes + held
    assert not any("support" in name for name in model.state_dict())


@pytest.mark.parametrize("kind", ["adamw", "spectral"])
def test_values_are_weights_that_adamw_steps_and_decays(kind):
    config = read_config(None, [*TINY, *FORMAT, f"optim.kind={kind}", "optim.weight_decay=0.1"])
    model = build_model(config.model, plan_model(config, FACTS), torch.Generator())
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = {
        names[parameter]: (group["name"], group["weight_decay"])
        for group in parameter_groups(model, config.optim)
        for parameter in group["params"]
    }
    layer = "model.layers.0.mlp.up_proj"
    assert groups[f"{layer}.values"] == groups["lm_head.values"] == ("dense", 0.1)
    assert groups[f"{layer}.core_1"] == groups[f"{layer}.core_2"] == ("factors" if kind == "spectral" else "cores", 0.1)
    assert groups["lm_head.core_1"] == ("cores", 0.1)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("ranks.adapt=true", "ranks.adapt = true and no layer has ranks that can change"),
        ("model.format.embedding=sltrain", "this format stores no tables"),
        ("tensor.sltrain.sparsity=0", "tensor.sltrain.sparsity = 0 is not possible"),
        ("tensor.sltrain.sparsity=1.5", "tensor.sltrain.sparsity = 1.5 is not possible"),
        (
            "optim.kind=muon",
            "optim.kind = muon updates the dense matrices of transformer blocks",
        ),
    ],
)
def test_what_the_format_cannot_do_is_refused(override, sentence):
    with pytest.raises(ConfigError) as error:
        read_config(None, [*TINY, *FORMAT, override])
    assert sentence in str(error.value)
