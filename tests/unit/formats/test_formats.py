"""Promises of a format, kept by all of them.

Shapes: N inputs, M outputs, T tokens.
"""

import json
from math import prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from two_devices import TwoDevices, is_on_gpu

from comera_dist.config.reader import read_config
from comera_dist.config.registry import FORMATS
from comera_dist.errors import ConfigError
from comera_dist.formats.base import FromDense, Resizable, Tables, Unfoldings
from comera_dist.formats.block_train import BlockTrainPlan, plan_blocks
from comera_dist.formats.bottleneck import BottleneckPlan
from comera_dist.formats.capabilities import Gated, ToDense
from comera_dist.formats.convert import LinearFormat, TableFormat, densify, tensorize
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.mixed_dimension import MixedDimensionPlan, plan_mixed
from comera_dist.formats.plan import plan_linear, read_matrix
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.sltrain import SLTrainPlan
from comera_dist.formats.tensor_train.shapes import plan_tt, plan_ttm
from comera_dist.ops.block_logits import block_logits
from comera_dist.optim.adamw import AdamW
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Decision
from comera_dist.ranks.resize import Resize

LINEAR = [
    DensePlan(18, 10),
    RemovedPlan(18, 10),
    plan_tt(18, 10, 2, 6),
    plan_tt(18, 10, 1, 4),
    plan_blocks(18, 10, 2),
    plan_blocks(17, 11, 3),  # padded on both sides
    plan_blocks(18, 10, 1, blocks=2),
    BottleneckPlan(18, 10, 5),
    SLTrainPlan(18, 10, 5, 20, 3),
    MixedDimensionPlan(10, 18, (3, 5, 10), (10, 4, 2)),
]
TABLES = [
    DensePlan(21, 10, is_embedding=True),
    plan_ttm(20, 12, 2, 4),
    plan_ttm(21, 10, 2, 3, vocab_modes=(21, 1), width_modes=(1, 10)),
    BlockTrainPlan(21, 10, (5, 5), (2, 5), 2, is_embedding=True),
    MixedDimensionPlan(21, 10, (3, 6, 12), (8, 4, 2), is_embedding=True),
]
RESIZABLE = [plan for plan in LINEAR + TABLES if isinstance(plan, Resizable)]
GENERATOR = torch.Generator()


def built(plan, seed=0, bias=True):
    """A module of the plan with gates that are not open: a gate of one would hide a gate in the wrong place."""
    generator = GENERATOR.manual_seed(seed)
    layer = plan.build(0.3, generator, bias=bias and not plan.is_embedding)
    for gate in layer.gates if isinstance(layer, Gated) else []:
        gate.data.uniform_(0.5, 1.5, generator=generator)
    return layer.double()


def inputs_of(plan):
    if plan.is_embedding:
        return torch.arange(plan.inputs).repeat(2).view(2, -1)
    return torch.randn(2, 9, plan.inputs, generator=GENERATOR.manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("plan", TABLES, ids=str)
def test_an_id_outside_the_table_is_an_error(plan):
    for outside in (-1, plan.inputs):
        with pytest.raises(IndexError):
            built(plan)(torch.tensor([0, outside]))


@pytest.mark.parametrize("plan", LINEAR + TABLES, ids=str)
def test_a_plan_describes_its_module_and_survives_json(plan):
    layer = built(plan)
    assert {n: tuple(p.shape) for n, p in layer.named_parameters() if n != "bias"} == plan.tensors
    sizes = {name: prod(size) for name, size in plan.tensors.items()}
    assert plan.num_gates == sum(size for name, size in sizes.items() if name.startswith("gate_"))
    assert plan.parameters == sum(sizes.values())
    assert read_matrix(json.loads(json.dumps(plan.to_json()))) == plan
    assert layer(inputs_of(plan)).shape == (2, inputs_of(plan).shape[1], plan.outputs)


@pytest.mark.parametrize("plan", LINEAR + TABLES, ids=str)
def test_a_module_computes_as_its_dense_equal(plan):
    layer, x = built(plan), inputs_of(plan)
    if isinstance(plan, BottleneckPlan):
        narrow = torch.nn.functional.silu(x @ layer.core_1) * layer.gate_1
        torch.testing.assert_close(layer(x), narrow @ layer.core_2 + layer.bias)
        assert not isinstance(layer, ToDense)
        with pytest.raises(ConfigError, match="bottleneck, which has no dense equal"):
            densify(torch.nn.Sequential(layer))
        return
    dense = densify(torch.nn.Sequential(layer))[0]
    assert type(dense).__name__ in ("Embedding", "DenseLinear")
    torch.testing.assert_close(layer(x), dense(x))


@pytest.mark.parametrize("plan", LINEAR + TABLES, ids=str)
def test_a_module_tells_its_sizes_on_the_meta_device(plan):
    layer, x = built(plan).float(), inputs_of(plan)
    x = x if plan.is_embedding else x.float()
    expected = layer(x)
    found = layer.to("meta")(x.to("meta"))
    assert (found.shape, found.dtype, found.is_meta) == (expected.shape, expected.dtype, True)


@pytest.mark.parametrize("plan", LINEAR, ids=str)
def test_then_gets_two_factors_of_the_product(plan):
    if isinstance(plan, RemovedPlan):
        return
    layer, x = built(plan, bias=False), inputs_of(plan)
    torch.testing.assert_close(layer(x, block_logits), layer(x))


# What SLTrain takes over is no closest weight; tests/unit/formats/test_sltrain.py has its promise.
EXACT = [plan for plan in LINEAR + TABLES if isinstance(plan, FromDense) and not isinstance(plan, SLTrainPlan)]


@pytest.mark.parametrize("plan", EXACT, ids=str)
def test_a_weight_of_the_format_is_taken_over_exactly(plan):
    layer, x = built(plan), inputs_of(plan)
    again = plan.from_dense(layer.to_dense().float(), None if plan.is_embedding else layer.bias.float())
    torch.testing.assert_close(
        again(x.float() if x.is_floating_point() else x).double(), layer(x), atol=1e-5, rtol=1e-4
    )
    with pytest.raises(ConfigError):
        plan.from_dense(torch.zeros(3, 3))


def test_a_block_train_takes_the_best_matrix_of_its_rank_in_every_block():
    plan, weight = plan_blocks(18, 10, 1), torch.randn(10, 18, generator=GENERATOR.manual_seed(1))
    (n, c), (m, b) = plan.in_blocks, plan.out_blocks
    found = plan.from_dense(weight).to_dense()
    for i in range(n):
        for j in range(m):
            rows, columns = slice(j * b, min(10, j * b + b)), slice(i * c, min(18, i * c + c))
            U, S, Vh = torch.linalg.svd(weight[rows, columns])
            torch.testing.assert_close(found[rows, columns], S[0] * U[:, :1] @ Vh[:1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "plan",
    [
        plan_blocks(64, 48, 4),
        BottleneckPlan(64, 48, 24),
        plan_tt(64, 48, 2, 20),
        MixedDimensionPlan(64, 70, (10, 20, 40), (40, 20, 10)),
    ],
    ids=str,
)
def test_outputs_start_with_the_variance_of_a_dense_layer(plan):
    layer = plan.build(0.3, GENERATOR.manual_seed(3))
    y = layer(torch.randn(4000, 64, generator=GENERATOR))
    assert float(y.square().mean()) == pytest.approx(64 * 0.09, rel=0.15)


@pytest.mark.parametrize("plan", [plan for plan in LINEAR + TABLES if isinstance(plan, Unfoldings)], ids=str)
def test_unfoldings_are_reshaped_cores(plan):
    for name, size in plan.unfoldings.items():
        assert prod(size) == prod(plan.tensors[name])
    assert set(plan.unfoldings) == {name for name in plan.tensors if name != "values" and not name.startswith("gate_")}
    assert plan.cores == {} if isinstance(plan, DensePlan) else plan.cores.keys() == plan.unfoldings.keys()


@pytest.mark.parametrize("plan", [plan_tt(12, 18, 2, 5), plan_tt(12, 12, 1, 5), plan_blocks(16, 16, 1)], ids=str)
def test_isometric_unfoldings_make_an_isometric_weight(plan):
    layer = plan.build(0.3, GENERATOR)
    for name, size in plan.unfoldings.items():
        core = layer.get_parameter(name)
        U, _, Vh = torch.linalg.svd(core.detach().reshape(size), full_matrices=False)
        core.data.copy_((U @ Vh).reshape(core.shape))
    values = torch.linalg.svdvals(layer.to_dense().detach())
    rank = plan.bonds[len(plan.bonds) // 2] if len(plan.bonds) > 1 or plan.tag == "tensor_train" else 16
    torch.testing.assert_close(values[:rank], torch.ones(rank))
    assert values[rank:].sum() < 1e-5


@pytest.mark.parametrize("plan", [plan_blocks(18, 10, 2), BottleneckPlan(18, 10, 5), DensePlan(18, 10)], ids=str)
def test_flops_are_those_that_are_computed(plan):
    layer, tokens = plan.build(0.3, GENERATOR, bias=False), 40
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(tokens, 18))
    assert counter.get_total_flops() == plan.forward_flops(tokens)
    assert plan.step_cost(tokens, "cpu", 4).flops == 3 * counter.get_total_flops()


def state_of(layer):
    """Weights, first moments that are the gradients of a loss, and squares, by parameter name."""
    return {
        f"layer.{name}": {"weight": p.detach().clone(), "exp_avg": p.grad.clone(), "exp_avg_sq": p.grad.square() + 1}
        for name, p in layer.named_parameters()
    }


def loss_and_gradients(layer, plan):
    layer.zero_grad()
    x = inputs_of(plan)
    weights = torch.randn(2, x.shape[1], plan.outputs, generator=GENERATOR.manual_seed(8), dtype=torch.float64)
    (layer(x) * weights).sum().backward()
    return layer(x).detach()


def load(plan, state):
    layer = built(plan, seed=77)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        name.removeprefix("layer."): tuple(tensors["weight"].shape) for name, tensors in state.items()
    }
    for tensors in state.values():
        assert len({(tensor.shape, tensor.is_contiguous()) for tensor in tensors.values()}) == 1
    layer.load_state_dict({name.removeprefix("layer."): tensors["weight"] for name, tensors in state.items()})
    return layer


@pytest.mark.parametrize("plan", RESIZABLE, ids=str)
def test_cut_and_growth_leave_the_function_as_it_is(plan):
    layer, layout = built(plan), GateLayout.of({"layer": plan})
    cut_G = torch.zeros(layout.num_gates, dtype=torch.bool)
    cut_G[layout.ranks_B.cumsum(0) - 1] = layout.ranks_B > 1
    for gate, marks in zip(layer.gates, layout.gates_by_layer(cut_G)["layer"], strict=True):
        gate.data[marks] = 0
    y = loss_and_gradients(layer, plan)
    resize = Resize(layout, Decision(cut_G, torch.full_like(layout.ranks_B, 2), cut_G.long()), seed=1)
    new = resize.plan({"layer": plan})["layer"]
    assert new.bonds == tuple((layout.after_cut(cut_G) + 2).tolist())
    torch.testing.assert_close(load(new, resize.apply_layer("layer", state_of(layer)))(inputs_of(plan)), y)
    assert isinstance(plan.with_bonds([0] * len(plan.bonds)), RemovedPlan)
    assert layout.size(layout.ranks_B) == plan.parameters


@pytest.mark.parametrize("plan", RESIZABLE, ids=str)
def test_balancing_keeps_the_function_and_moves_the_gradients(plan):
    layer, layout = built(plan), GateLayout.of({"layer": plan})
    y = loss_and_gradients(layer, plan)
    nothing = Decision(torch.zeros(layout.num_gates, dtype=torch.bool), torch.zeros_like(layout.ranks_B), None)
    resize = Resize(layout, nothing, seed=1, balances=True)
    state = resize.apply_layer("layer", state_of(layer))
    new = load(plan, state)
    torch.testing.assert_close(loss_and_gradients(new, plan), y)
    for name, parameter in new.named_parameters():
        if name.startswith("gate_"):
            assert bool((parameter == 1).all())
            assert not state[f"layer.{name}"]["exp_avg"].any()
        else:
            torch.testing.assert_close(state[f"layer.{name}"]["exp_avg"], parameter.grad, atol=1e-7, rtol=1e-5)
        assert bool((state[f"layer.{name}"]["exp_avg_sq"] >= 0).all())


@pytest.mark.parametrize("plan", RESIZABLE, ids=str)
def test_the_state_of_a_layer_on_a_gpu_stays_there(plan):
    layer, layout = built(plan), GateLayout.of({"layer": plan})
    loss_and_gradients(layer, plan)
    none, ones = torch.zeros(layout.num_gates, dtype=torch.bool), torch.ones_like(layout.ranks_B)
    first_G = none.clone()
    first_G[0] = layout.ranks_B[0] > 1
    decisions = Decision(first_G, ones, first_G.long()), Decision(none, 0 * ones, None)
    with TwoDevices() as devices:
        for decision in decisions:
            state = {
                name: {kind: devices.put(tensor) for kind, tensor in tensors.items()}
                for name, tensors in state_of(layer).items()
            }
            resized = Resize(layout, decision, 1, balances=decision is decisions[1]).apply_layer("layer", state)
            assert all(is_on_gpu(tensor) for tensors in resized.values() for tensor in tensors.values())


def test_two_devices_are_told_apart():
    with TwoDevices() as devices:
        here, there = torch.ones(2), devices.put(torch.ones(2))
        assert (here.device.type, there.device.type) == ("cpu", "cuda")
        assert is_on_gpu(there[:1] * 2 + torch.ones(()))
        assert is_on_gpu(here.to(there))
        assert is_on_gpu(here.to(there.device))
        assert is_on_gpu(torch.zeros(2, device=there.device))
        assert not is_on_gpu(there.to(torch.device("cpu")))
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            here * there.sum()


@pytest.mark.parametrize("plan", [plan_blocks(18, 10, 2), BottleneckPlan(18, 10, 5)], ids=str)
def test_closed_gates_come_back_to_life_where_there_is_a_gauge(plan):
    layer, layout = built(plan), GateLayout.of({"layer": plan})
    layer.gate_1.data[0] = 0
    y = loss_and_gradients(layer, plan)
    nothing = Decision(torch.zeros(layout.num_gates, dtype=torch.bool), torch.zeros_like(layout.ranks_B), None)
    new = load(plan, Resize(layout, nothing, 1, balances=True).apply_layer("layer", state_of(layer)))
    torch.testing.assert_close(loss_and_gradients(new, plan), y)
    assert all(parameter.grad.abs().amax() > 0 for parameter in new.parameters())
    assert bool((new.core_2.grad.movedim(1 if new.core_2.ndim == 4 else 0, 0).flatten(1).abs().amax(1) > 0).all())


def test_singular_directions_of_blocks_come_in_order():
    plan = plan_blocks(18, 10, 3)
    state = {name: {"weight": p.detach()} for name, p in built(plan, bias=False).named_parameters()}
    core_1 = plan.balanced(state, AdamW.roles, lambda name, size: torch.randn(size))["core_1"]["weight"]
    norms = core_1.square().sum(1)  # (n, m, r)
    assert bool((norms.diff(dim=-1) <= 1e-12).all())


def test_plans_of_earlier_versions_are_read():
    train, table = plan_tt(18, 10, 2, 6), plan_ttm(20, 12, 2, 4)
    old = {"inputs": 18, "outputs": 10, "is_embedding": False, "is_removed": False, "shape": None}
    names = {
        "in_features": 18,
        "out_features": 10,
        "in_modes": list(train.in_modes),
        "out_modes": list(train.out_modes),
    }
    sizes = {**names, "ranks": list(train.ranks)}
    of_table = {"num_embeddings": 20, "embedding_dim": 12, "ranks": list(table.ranks)}
    of_table |= {"vocab_modes": list(table.in_modes), "width_modes": list(table.out_modes)}
    assert read_matrix({"format": "tensor_train", **sizes}) == train
    assert read_matrix({"format": "tensor_train_matrix", **of_table}) == table
    assert read_matrix({**old, "shape": sizes}) == train
    assert read_matrix({**old, "inputs": 20, "outputs": 12, "is_embedding": True, "shape": of_table}) == table
    assert read_matrix(old) == DensePlan(18, 10)
    assert read_matrix({**old, "is_removed": True}) == RemovedPlan(18, 10)
    with pytest.raises(ConfigError, match="the format woven is not known"):
        read_matrix({"format": "woven", "inputs": 3, "outputs": 4})


def test_every_format_is_chosen_by_its_name_and_has_its_own_keys():
    config = read_config(None, ["train.steps=1", "tensor.block_train.rank=3", "tensor.bottleneck.rank=7"])
    plans = {name: plan_linear(config, "a", name, 64, 64) for name in FORMATS.names()}
    assert plans["block_train"].rank == 3
    assert plans["bottleneck"].rank == 7
    assert plans["low_rank"] == plan_tt(64, 64, 1, 32)
    assert all(isinstance(plan, FORMATS[name].linear_plan) for name, plan in plans.items())
    assert config.model_dump(mode="json")["tensor"]["block_train"] == {"rank": 3, "blocks": None}


def test_a_rule_sets_the_options_of_its_format():
    rules = "tensor.layers=[{match: a, format: block_train, rank: 2, options: {blocks: 4}}, {match: b, format: dense}]"
    config = read_config(None, ["train.steps=1", rules])
    assert plan_linear(config, "a", "tensor", 64, 32) == plan_blocks(64, 32, 2, blocks=4)
    assert plan_linear(config, "b", "tensor", 64, 32) == DensePlan(64, 32)
    config = read_config(None, ["train.steps=1", "tensor.layers=[{match: a, format: low_rank, order: 2}]"])
    with pytest.raises(ConfigError, match="sets order, which the format low_rank does not have; it has rank"):
        plan_linear(config, "a", "tensor", 64, 32)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "tensor.block_train.rnk=3",
            "tensor.block_train.rnk is not a known key; did you mean tensor.block_train.rank?",
        ),
        ("tensor.block_train.rank=0", "tensor.block_train.rank = 0 is not possible: input should be greater than 0"),
        ("tensor.blocktrain.rank=2", "tensor.blocktrain is not a known key; did you mean tensor.block_train?"),
        (
            "model.format.embedding=bottleneck",
            "model.format.embedding = bottleneck is not possible: this format stores no tables; set it to another",
        ),
    ],
)
def test_mistakes_about_formats_are_sentences(override, sentence):
    with pytest.raises(ConfigError) as error:
        read_config(None, ["train.steps=1", override])
    assert str(error.value) == sentence


def test_layers_of_a_users_model_take_any_format():
    model = torch.nn.Sequential(torch.nn.Embedding(30, 12), torch.nn.Linear(12, 20), torch.nn.Linear(20, 8))
    tensorize(
        model,
        {
            "0": TableFormat("block_train"),
            "1": LinearFormat("bottleneck", rank=4),
            "2": LinearFormat("low_rank", rank=3),
        },
    )
    assert [layer.plan.tag for layer in model] == ["block_train", "bottleneck", "tensor_train"]
    assert model(torch.tensor([1, 2])).shape == (2, 8)
    with pytest.raises(ConfigError, match="cannot take over a weight"):
        tensorize(torch.nn.Linear(4, 4), {"*": LinearFormat("bottleneck", rank=2)}, from_weights=True)
    with pytest.raises(ConfigError, match="the format bottleneck stores no tables"):
        tensorize(torch.nn.Embedding(4, 4), {"*": TableFormat("bottleneck", rank=2)})
    for name in ("bottleneck", "low_rank"):
        with pytest.raises(ConfigError, match=f"the format {name} was chosen without a rank"):
            tensorize(torch.nn.Linear(4, 4), {"*": LinearFormat(name)})


def test_all_formats_of_tables_are_known():
    assert [name for name in FORMATS.names() if isinstance(FORMATS[name], Tables)] == [
        "dense",
        "tensor",
        "low_rank",
        "block_train",
        "mixed_dimension",
        "auto",
    ]


@pytest.mark.parametrize(
    ("rows", "blocks", "expected"),
    [
        (70, 3, ((10, 20, 40), (8, 4, 2))),
        (70, 1, ((70,), (8,))),
        (72, 3, ((11, 20, 41), (8, 4, 2))),
        (2, 3, ((1, 1), (8, 4))),
        (4096, 5, ((133, 264, 528, 1057, 2114), (8, 4, 2, 1, 1))),
    ],
)
def test_rows_of_mixed_dimensions_double_and_their_ranks_halve(rows, blocks, expected):
    assert plan_mixed(rows, 16, 8, blocks) == expected
    assert plan_mixed(rows, 4, 8, blocks)[1][0] == 4


def test_blocks_that_do_not_fit_the_table_are_a_sentence():
    with pytest.raises(ConfigError, match=r"blocks of .3, 4. rows and ranks .2, 1. do not fit 8 rows"):
        MixedDimensionPlan(8, 4, (3, 4), (2, 1), is_embedding=True)
