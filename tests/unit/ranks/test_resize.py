"""A resized layer or model computes what the old one does without the indices that went; new ones start silently."""

from itertools import groupby

import numpy as np
import pytest
import torch
from support import TINY, VOCAB

from comera_dist.config.reader import read_config
from comera_dist.formats.base import Resizable
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.dense_layers import RemovedLinear
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, plan_tt, plan_ttm
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Decision
from comera_dist.ranks.resize import Resize

KINDS = ("weight", "exp_avg", "exp_avg_sq")
SHAPES = [
    plan_tt(24, 30, 1, 7),
    TTShape(24, 30, (6, 4), (5, 6), (1, 5, 7, 6, 1)),
    TTShape(45, 105, (5, 3, 3), (3, 5, 7), (1, 4, 7, 9, 8, 5, 1)),
    plan_tt(97, 60, 2, 6),  # padded on one side
    TTShape(24, 105, (6, 4), (3, 5, 7), (1, 3, 8, 5, 4, 1)),
    TTMShape(61, 20, (8, 8), (4, 5), (1, 7, 1)),
    TTMShape(61, 19, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1)),  # padded on both
]


def random_gates(module, generator):
    """Gates of one would hide a gate in the wrong place."""
    for train in module.modules():
        for gate in train.gates if isinstance(train, TensorTrain) else []:
            gate.data.uniform_(0.5, 1.5, generator=generator)
            gate.data *= torch.randint(0, 2, gate.shape, generator=generator) * 2 - 1
    return module


def layer_of(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    kind = TTMEmbedding if isinstance(shape, TTMShape) else TTLinear
    return random_gates(kind(shape, generator=generator), generator)


def inputs_of(shape):
    if isinstance(shape, TTMShape):
        return torch.arange(shape.inputs)
    return torch.randn(9, shape.inputs, generator=torch.Generator().manual_seed(5))


def trains_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, TensorTrain)}


def layout_of(model):
    return GateLayout.of({name: train.plan for name, train in trains_of(model).items()})


def random_decision(layout, seed=0, share=0.4, added=0):
    """Cuts about `share` of the indices, never all of a bond, and adds as many to each bond as `added` says."""
    generator = torch.Generator().manual_seed(seed)
    cuts = []
    for rank in layout.ranks_B.tolist():
        cut = torch.rand(rank, generator=generator) < share
        cut[torch.randint(rank, (), generator=generator)] = False
        cuts.append(cut)
    added_B = torch.full_like(layout.ranks_B, added)
    return Decision(torch.cat(cuts), added_B)


def state_of(model):
    """Weight and moments by parameter name; each moment is a function of its weight, so that a test can find it."""
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {name: dict(zip(KINDS, (w, 2 * w + 3, w.square() + 1), strict=True)) for name, w in weights.items()}


def load(model, resize, old):
    """Gives the parameters of `model` what `resize` makes of `old`; shapes have to be those of the plan exactly."""
    state = {}
    for layer, names in groupby(state_of(old).items(), key=lambda item: item[0].rpartition(".")[0]):
        state |= resize.apply_layer(layer, dict(names))
    for name, parameter in model.named_parameters():
        for tensor in state[name].values():
            assert tensor.shape == parameter.shape, name
            assert tensor.is_contiguous()
        parameter.data.copy_(state[name]["weight"])
    return model


def resized_layer(layer, resize):
    plan = resize.plan({"layer": layer.plan})["layer"]
    holder = torch.nn.ModuleDict({"layer": layer_of(plan, seed=99)})
    return load(holder, resize, torch.nn.ModuleDict({"layer": layer}))["layer"]


def close_gates(model, layout, cut_G):
    """Sets the gates that are marked to zero."""
    trains = trains_of(model)
    with torch.no_grad():
        for name, marks in layout.gates_by_layer(cut_G).items():
            for gate, mark in zip(trains[name].gates, marks, strict=True):
                gate[mark] = 0.0


def layer_and_decision(shape, **keys):
    layer = layer_of(shape)
    layout = GateLayout.of({"layer": shape})
    return layer, layout, random_decision(layout, **keys)


def assert_same_function(new, old, x):
    with torch.no_grad():
        expected, actual = old(x), new(x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("added", [0, 2])
@pytest.mark.parametrize("balances", [False, True])
def test_a_resized_layer_is_the_old_one_with_the_gates_closed(shape, added, balances):
    layer, layout, decision = layer_and_decision(shape, added=added)
    assert decision.cut_G.any()
    resize = Resize(layout, decision, seed=3, balances=balances)
    new = resized_layer(layer, resize)
    assert new.plan.bonds == tuple((layout.after_cut(decision.cut_G) + added).tolist())
    x, before = inputs_of(shape), layer(inputs_of(shape)).detach()
    close_gates(torch.nn.ModuleDict({"layer": layer}), layout, decision.cut_G)
    assert not torch.allclose(layer(x), before, rtol=1e-2), "the cut indices did nothing"
    assert_same_function(new, layer, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_that_grows_computes_what_it_did(shape):
    layer, layout, decision = layer_and_decision(shape, share=0.0, added=3)
    new = resized_layer(layer, Resize(layout, decision, seed=3))
    assert new.plan.bonds == tuple(rank + 3 for rank in shape.bonds)
    assert_same_function(new, layer, inputs_of(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_new_indices_learn(shape):
    """The gradient reaches the zeros right of the bond at once, and through them whatever is left of it."""
    layer, layout, decision = layer_and_decision(shape, share=0.0, added=2)
    new = resized_layer(layer, Resize(layout, decision, seed=3))
    bonds = list(zip(shape.bonds, new.gates, new.cores, new.cores[1:], strict=False))
    for rank, gate, left, right in bonds:
        # A new index starts with what old ones carry on its left, and with nothing on its right.
        assert torch.equal(gate[rank:], torch.ones(2))
        assert left[..., rank:].abs().max() > 0.1 * left[..., :rank].abs().max()
        assert not right[rank:].any()
    optimizer = torch.optim.AdamW(new.parameters(), lr=1e-3)
    x = inputs_of(shape)
    goal = torch.randn(new(x).shape, generator=torch.Generator().manual_seed(6))
    for step in range(4):
        optimizer.zero_grad()
        loss = (new(x) - goal).square().mean()
        loss.backward()
        if step == 0:
            first = loss.item()
            for rank, _, _, right in bonds:
                assert (right.grad[rank:].flatten(1).abs().amax(1) > 0).all()
        optimizer.step()
    for rank, gate, _, right in bonds:
        assert (right[rank:].flatten(1).abs().amax(1) > 0).all()
        assert gate.grad[rank:].all(), "a gate that learns nothing has no importance"
    assert loss.item() < first


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_and_moments_keep_the_same_indices(shape):
    layer, layout, decision = layer_and_decision(shape, added=2)
    resize = Resize(layout, decision, seed=3)
    cut = [marks.numpy() for marks in layout.gates_by_layer(decision.cut_G)["layer"]]
    kept = [np.array([0]), *(np.flatnonzero(~marks) for marks in cut), np.array([0])]
    for name, tensors in state_of(torch.nn.ModuleDict({"layer": layer})).items():
        kind, number = name.rsplit(".", 1)[1].split("_")
        number = int(number)
        result = resize.apply_layer("layer", {name: tensors})[name]
        assert set(result) == set(KINDS)
        for key in KINDS:
            old, new = tensors[key].numpy(), result[key].numpy()
            if kind == "gate":
                expected = old[kept[number]]
                assert np.array_equal(new[: len(expected)], expected)
                assert np.array_equal(new[len(expected) :], [float(key == "weight")] * 2)
                continue
            modes = [np.arange(size) for size in old.shape[1:-1]]
            expected = old[np.ix_(kept[number - 1], *modes, kept[number])]
            region = tuple(slice(size) for size in expected.shape)
            assert np.array_equal(new[region], expected)
            if key != "weight":
                rest = np.ones(new.shape, dtype=bool)
                rest[region] = False
                fill = expected.mean() if key == "exp_avg_sq" else 0.0
                np.testing.assert_allclose(new[rest], fill, rtol=1e-5)


def test_what_belongs_to_no_changed_bond_is_handed_on_untouched():
    layout = GateLayout.of({"a": SHAPES[0], "b": SHAPES[1]})
    cut_G = torch.zeros(layout.num_gates, dtype=torch.bool)
    cut_G[0] = True
    resize = Resize(layout, Decision(cut_G, torch.zeros_like(layout.ranks_B)), 1)
    assert list(resize.bonds) == ["a"]
    tensors = dict.fromkeys(KINDS, torch.randn(30))
    for name in ("b.core_1", "b.gate_1", "a.bias", "norm.weight", "a.b.core_1"):
        assert resize.apply_layer(name.rpartition(".")[0], {name: tensors})[name] is tensors
    plan = {"a": SHAPES[0], "b": SHAPES[1], "dense": DensePlan(3, 4)}
    changed = resize.plan(plan)
    assert changed["a"].ranks == (1, 6, 1)
    assert {n: p for n, p in changed.items() if n != "a"} == {n: p for n, p in plan.items() if n != "a"}


def test_new_indices_are_drawn_from_the_seed_and_the_name():
    layer, _, decision = layer_and_decision(SHAPES[2], share=0.0, added=3)
    tensors = state_of(layer)["core_2"]
    rank = layer.core_2.shape[-1]

    def drawn(seed, name):
        owner = name.rpartition(".")[0]
        resize = Resize(GateLayout.of({owner: layer.plan}), decision, seed)
        resized = resize.apply_layer(owner, {name: tensors})
        return resized[name]["weight"][:-3, ..., rank:]

    first = drawn(7, "layer.core_2")
    assert torch.equal(first, drawn(7, "layer.core_2"))
    assert not torch.isclose(first, drawn(8, "layer.core_2")).any()
    assert not torch.isclose(first, drawn(7, "other.core_2")).any()
    root_mean_square = layer.core_2.detach().square().mean().sqrt()
    torch.testing.assert_close(first.square().mean().sqrt(), root_mean_square, rtol=0.3, atol=0)


def balanced(shape, seed, close):
    """What a sync that cuts nothing makes of a layer whose gates were set to zero from index `close` on."""
    layer, layout, decision = layer_and_decision(shape, share=0.0)
    for gate in layer.gates:
        gate.data[close:] = 0.0
    state = state_of(torch.nn.ModuleDict({"layer": layer}))
    return layer, Resize(layout, decision, seed, balances=True).apply_layer("layer", state)


@pytest.mark.parametrize("close", [0, 2])
def test_what_closed_gates_have_left_dead_learns_after_a_sync(close):
    layer, state = balanced(SHAPES[1], 3, close)
    new = layer_of(SHAPES[1], seed=9)
    for name, parameter in new.named_parameters():
        parameter.data.copy_(state[f"layer.{name}"]["weight"])
    x = inputs_of(SHAPES[1])
    assert_same_function(new, layer, x)
    (new(x) - 1).square().sum().backward()
    for core in list(new.cores)[1:] if close else [new.core_4]:
        assert not core[close:].any()
        assert (core.grad[close:].flatten(1).abs().amax(1) > 0).all()


def test_dead_directions_are_drawn_from_the_seed_and_have_second_moments_of_the_living():
    (_, state), (_, again), (_, other) = (balanced(SHAPES[1], seed, 2) for seed in (3, 3, 4))
    weights = [s["layer.core_1"]["weight"] for s in (state, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0][..., :2], weights[2][..., :2])
    assert not torch.isclose(weights[0][..., 2:], weights[2][..., 2:]).any()
    square = state["layer.core_1"]["exp_avg_sq"]
    torch.testing.assert_close(square[..., 2:], square[..., :2].mean().expand_as(square[..., 2:]))
    assert not state["layer.core_1"]["exp_avg"][..., 2:].any()


# A whole model.


def build(*overrides):
    config = read_config(None, [*TINY, "model.heads=4", *overrides])
    generator = torch.Generator().manual_seed(0)
    return config, random_gates(Decoder(config.model, plan_decoder(config, VOCAB), generator), generator)


def removing(layout, decision, *layers):
    """The same decision, but with all indices of the last bond of `layers` cut; what goes does not grow."""
    last = {name: k for k, (name, _) in enumerate(layout.bond_names)}
    gone_B = torch.zeros(len(layout.ranks_B), dtype=torch.bool)
    gone_B[[last[name] for name in layers]] = True
    added_B = torch.where(torch.tensor([name in layers for name, _ in layout.bond_names]), 0, decision.added_B)
    return Decision(decision.cut_G | gone_B[layout.bond_G], added_B)


def resized_decoder(config, model, resize):
    plan = resize.plan(model.plan)
    return load(Decoder(config.model, plan, torch.Generator().manual_seed(1)), resize, model)


REMOVED = ("model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj")


@pytest.mark.parametrize("removed", [(), REMOVED], ids=["all stay", "three go"])
@pytest.mark.parametrize("added", [0, 1])
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["tensor.order=1"],
        ["tensor.order=3", "tensor.embedding_order=3", "model.d_ff=37", "model.tie_embeddings=true"],
        ["model.format.mlp=dense", "model.format.embedding=dense"],
    ],
    ids=str,
)
def test_a_resized_decoder_is_the_old_one_with_the_gates_closed(overrides, added, removed):
    config, model = build(*overrides)
    layout = layout_of(model)
    removed = [name for name in removed if name in layout.shapes]
    decision = removing(layout, random_decision(layout, share=0.3, added=added), *removed)
    resize = Resize(layout, decision, seed=3)
    new = resized_decoder(config, model, resize)
    assert [name for name, m in new.named_modules() if isinstance(m, RemovedLinear)] == removed
    assert {name: train.plan for name, train in trains_of(new).items()} == {
        name: layer for name, layer in resize.plan(model.plan).items() if isinstance(layer, Resizable)
    }
    stored = sum(layer.parameters for layer in new.plan.values())
    norms = sum(p.numel() for name, p in new.named_parameters() if "norm" in name)
    assert sum(p.numel() for p in new.parameters()) == stored + norms
    tokens = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(1))
    close_gates(model, layout, decision.cut_G)
    assert_same_function(new, model, tokens)


def test_numbers_a_gate_follow_the_new_layout():
    """Also where a layer is gone: its numbers go with it, those of the bonds that it had left included."""
    config, model = build()
    layout = layout_of(model)
    decision = removing(layout, random_decision(layout, share=0.3, added=2), *REMOVED)
    resize = Resize(layout, decision, seed=3)
    new = resized_decoder(config, model, resize)
    gates_G = torch.cat([gate.detach() for train in trains_of(model).values() for gate in train.gates]).double()
    new_gates_G = torch.cat([gate.detach() for train in trains_of(new).values() for gate in train.gates]).double()
    assert torch.equal(resize.gates(gates_G, 1.0), new_gates_G)
    counts_G = resize.gates(torch.arange(layout.num_gates), -8)
    new_layout = layout_of(new)
    assert counts_G.dtype == torch.int64
    assert len(counts_G) == new_layout.num_gates
    assert set(REMOVED) == set(layout.shapes) - set(new_layout.shapes)
    old, cut = layout.gates_by_layer(torch.arange(layout.num_gates)), layout.gates_by_layer(decision.cut_G)
    for name, bonds in new_layout.gates_by_layer(counts_G).items():
        for values, before, marks in zip(bonds, old[name], cut[name], strict=True):
            assert values.tolist() == [*before[~marks].tolist(), -8, -8]


def test_numbers_a_gate_of_a_model_that_loses_all_of_them_are_none():
    layout = GateLayout.of({"layer": SHAPES[0]})
    everything = Decision(torch.ones(7, dtype=torch.bool), torch.zeros(1, dtype=torch.int64), torch.zeros(7))
    resize = Resize(layout, everything, seed=0)
    assert resize.gates(torch.ones(7), 1.0).shape == (0,)
    plan = resize.plan({"layer": SHAPES[0]})["layer"]
    assert plan == RemovedPlan(24, 30)


def test_no_change_is_no_resize():
    layout = GateLayout.of({"layer": SHAPES[1], "table": plan_ttm(61, 20, 1, 4)})
    resize = Resize(layout, random_decision(layout, share=0.0), seed=0)
    assert resize.bonds == {}
    values_G = torch.randn(layout.num_gates)
    assert torch.equal(resize.gates(values_G, 1.0), values_G)


def test_balancing_opens_gates_and_begins_their_moments_anew():
    layer = layer_of(SHAPES[2])
    state = {f"layer.{name}": tensors for name, tensors in state_of(layer).items()}
    layout = GateLayout.of({"layer": layer.plan})
    nothing = torch.zeros(layout.num_gates)
    decision = Decision(nothing.bool(), torch.zeros_like(layout.ranks_B), nothing.long())
    resize = Resize(layout, decision, seed=0, balances=True)
    result = resize.apply_layer("layer", state)
    for name, tensors in result.items():
        assert tensors.keys() == state[name].keys()
        if ".gate_" in name:
            assert torch.equal(tensors["weight"], torch.ones_like(tensors["weight"]))
            assert not tensors["exp_avg"].any()
            assert not tensors["exp_avg_sq"].any()
        else:
            assert (tensors["exp_avg_sq"] >= 0).all()
