"""Sizes and costs of all gates on one vector against sums over layers, and how much work a step's bookkeeping is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT, TINY
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.config.ranks_section import Ranks
from comera_dist.config.reader import read_config
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, plan_tt, plan_ttm
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.build import build_optimizer
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.objective import Objective

PLAIN_TABLE = plan_ttm(61, 20, 1, 4)
SHAPES = {
    "embed": TTMShape(61, 19, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1)),  # padded on both sides
    "table": PLAIN_TABLE,
    "a.low_rank": plan_tt(24, 30, 1, 7),
    "a.order_2": TTShape(24, 30, (6, 4), (5, 6), (1, 5, 7, 6, 1)),
    "b.padded": plan_tt(97, 60, 4, 6),
    "b.uneven": TTShape(24, 105, (6, 4), (3, 5, 7), (1, 3, 8, 5, 4, 1)),
    "head": plan_tt(97, 211, 3, 9, 5),
}
BONDED = [name for name in SHAPES if name != "table"]


class Operations(TorchDispatchMode):
    """Counts what is dispatched to a backend while it is active."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def planned_parameters(names):
    plans = [SHAPES[name] for name in names]
    return sum(plan.parameters for plan in plans)


def relaxed_size(shapes, gates):
    """Ŝ from the definition, layer by layer and differentiable: Σ|g| in the place of every rank."""
    size = 0.0
    for name, shape in shapes.items():
        soft = [1.0, *(gate.abs().sum() for gate in gates[name]), 1.0]
        for left, modes, right in zip(soft, shape.core_modes, soft[1:], strict=False):
            size = size + left * torch.Size(modes).numel() * right
        size = size + sum(soft[1:-1])
    return size


@pytest.mark.parametrize(
    ("patterns", "adapted"),
    [
        (("*",), BONDED),
        (("a.*",), ["a.low_rank", "a.order_2"]),
        (("b.padded", "embed"), ["embed", "b.padded"]),
        (("table",), []),
        ((), []),
    ],
    ids=str,
)
def test_size_is_what_the_adapted_layers_store(patterns, adapted):
    layout = GateLayout.of(SHAPES, patterns)
    assert layout.adapted_layers == adapted
    assert layout.size(layout.ranks_B) == planned_parameters(adapted)


@pytest.mark.parametrize("name", BONDED)
def test_size_of_each_kind_of_layer(name):
    layout = GateLayout.of({name: SHAPES[name]})
    assert layout.size(layout.ranks_B) == planned_parameters([name])


@pytest.mark.parametrize("step", [1.0, -1.0])
@pytest.mark.parametrize("patterns", [("*",), ("a.*",)], ids=str)
def test_the_cost_of_an_index_is_what_the_size_changes_by(patterns, step):
    """Exactly: no core carries a bond twice, so the size is linear in each rank."""
    layout = GateLayout.of(SHAPES, patterns)
    cost_B = layout.index_cost(layout.ranks_B)
    for bond in range(len(layout.ranks_B)):
        other_B = layout.ranks_B.double()
        other_B[bond] += step
        assert layout.size(other_B) - layout.size(layout.ranks_B) == step * cost_B[bond]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_cost_at_soft_ranks_is_the_gradient_of_the_relaxed_size(seed):
    layout = GateLayout.of(SHAPES)
    gates_G = torch.randn(layout.num_gates, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gates = {name: [g.clone().requires_grad_() for g in gs] for name, gs in layout.gates_by_layer(gates_G).items()}
    size = relaxed_size({name: SHAPES[name] for name in BONDED}, gates)
    size.backward()
    per_size_G = torch.cat([gate.grad * gate.detach().sign() for gs in gates.values() for gate in gs])
    soft_ranks_B = layout.sums(gates_G.abs())
    torch.testing.assert_close(layout.index_cost(soft_ranks_B)[layout.bond_G], per_size_G, rtol=1e-12, atol=0)
    assert layout.size(soft_ranks_B) == pytest.approx(size.item(), rel=1e-12)


def test_layers_that_no_pattern_matches_cost_nothing():
    layout = GateLayout.of(SHAPES, ("a.*",))
    names = [name for name, _ in layout.bond_names]
    outside_B = torch.tensor([not name.startswith("a.") for name in names])
    assert torch.equal(layout.adapted_B, ~outside_B)
    assert not layout.index_cost(layout.ranks_B)[outside_B].any()
    assert layout.index_cost(layout.ranks_B)[~outside_B].all()
    larger_B = torch.where(outside_B, layout.ranks_B + 5, layout.ranks_B)
    assert layout.size(larger_B) == layout.size(layout.ranks_B)


@pytest.mark.parametrize("shapes", [{"table": PLAIN_TABLE}, {}], ids=["plain table", "nothing"])
def test_a_model_without_bonds_has_an_empty_layout(shapes):
    """Its numbers cannot be adapted, so they count neither as size nor as gates."""
    layout = GateLayout.of(shapes)
    empty_G = torch.zeros(0, dtype=torch.float64)
    assert (layout.num_gates, layout.size(layout.ranks_B), layout.adapted_layers) == (0, 0.0, [])
    for per_bond in (layout.index_cost(layout.ranks_B), layout.effective_ranks(empty_G), layout.sums(empty_G)):
        assert per_bond.shape == (0,)
    assert layout.after_cut(empty_G.bool()).shape == (0,)
    assert layout.by_layer(layout.ranks_B) == layout.gates_by_layer(empty_G) == {name: [] for name in shapes}


def test_effective_rank_counts_what_matters():
    layout = GateLayout.of({"layer": TTShape(24, 30, (6, 4), (5, 6), (1, 4, 6, 3, 1))})
    flat, single, dead = [0.3] * 4, [0, 0, 7.0, 0, 0, 0], [0.0] * 3
    effective_B = layout.effective_ranks(torch.tensor([*flat, *single, *dead], dtype=torch.float64))
    assert effective_B.tolist() == pytest.approx([4, 1, 1])
    share = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    uneven_B = layout.effective_ranks(torch.cat([torch.ones(10, dtype=torch.float64), share]))
    assert uneven_B.tolist() == pytest.approx([4, 6, 2**1.5])


def test_a_layer_that_loses_a_bond_loses_all_of_them():
    layout = GateLayout.of(SHAPES)
    cut = {name: [torch.zeros(r, dtype=torch.bool) for r in shape.bonds] for name, shape in SHAPES.items()}
    cut["a.order_2"][1][:] = True
    cut["b.padded"][0][:2] = True
    ranks = layout.by_layer(layout.after_cut(torch.cat([c for bonds in cut.values() for c in bonds])))
    bonds = {name: list(shape.bonds) for name, shape in SHAPES.items()}
    assert ranks == bonds | {"a.order_2": [0, 0, 0], "b.padded": [bonds["b.padded"][0] - 2, *bonds["b.padded"][1:]]}
    assert torch.equal(layout.ranks_B, GateLayout.of(SHAPES).ranks_B), "the layout itself was changed"


def test_numbers_come_back_in_the_order_in_which_they_were_grouped():
    layout = GateLayout.of(SHAPES)
    values_G = torch.arange(layout.num_gates)
    by_layer = layout.gates_by_layer(values_G)
    assert {name: tuple(map(len, gates)) for name, gates in by_layer.items()} == {n: s.bonds for n, s in SHAPES.items()}
    assert torch.equal(torch.cat([gate for gates in by_layer.values() for gate in gates]), values_G)
    values_B = torch.arange(len(layout.ranks_B))
    assert [v for values in layout.by_layer(values_B).values() for v in values] == values_B.tolist()
    assert [name for name, bonds in layout.by_layer(values_B).items() for _ in bonds] == [
        name for name, _ in layout.bond_names
    ]
    assert torch.equal(layout.sums(torch.ones(layout.num_gates, dtype=torch.int64)), layout.ranks_B)


def test_the_largest_rank_is_what_both_neighbours_can_fill():
    layout = GateLayout.of({"table": PLAIN_TABLE, "layer": TTShape(24, 105, (6, 4), (3, 5, 7), (1, 3, 8, 5, 4, 1))})
    assert layout.largest_ranks(layout.ranks_B) == [min(6, 4 * 8), min(3 * 4, 3 * 5), min(8 * 3, 5 * 4), min(5 * 5, 7)]
    assert layout.largest_ranks(torch.tensor([2, 8, 3, 4])) == [6, min(2 * 4, 3 * 3), min(8 * 3, 5 * 4), min(3 * 5, 7)]


def bookkeeping_operations(blocks, **ranks):
    """Operations of one step's rank bookkeeping in a decoder of so many blocks: pressure, then the gates' descent."""
    config = read_config(None, [*TINY, f"model.layers={blocks}", "ranks.adapt=true", "ranks.sync_every=1"])
    model = Decoder(config.model, plan_decoder(config, 64), torch.Generator().manual_seed(0))
    trains = {name: m for name, m in model.named_modules() if isinstance(m, TensorTrain)}
    optimizer = build_optimizer(model, config.optim, config.ranks)
    model(torch.arange(8)[None], torch.arange(8)[None]).backward()
    optimizer.step()
    layout = GateLayout.of({name: train.plan for name, train in trains.items()})
    size = layout.size(layout.ranks_B)
    objective = Objective(Ranks(adapt=True, **ranks), size, torch.device("cpu"))
    if ranks:
        objective.target_size = size / 2
    group = next(g for g in optimizer.param_groups if g["name"] == "gates")
    assert len(group["params"]) == sum(len(train.gates) for train in trains.values())
    weights_G = objective.weights(layout, layout.ranks_B.double())
    parts = [part for parts in layout.gates_by_layer(weights_G).values() for part in parts]
    optimizer.gate_weights = {g: p.to(g).view_as(g) for p, g in zip(parts, group["params"], strict=True)}
    before = [gate.detach().clone() for gate in group["params"]]
    loss = torch.tensor(4.0, dtype=torch.float64)
    with Operations() as operations, torch.no_grad():
        optimizer.pressure = objective.pressure(loss, 3)
        optimizer._press(group)
    assert all((gate < old).all() for gate, old in zip(group["params"], before, strict=True)), "it did nothing"
    return operations.count


@pytest.mark.parametrize("ranks", [{}, {"loss_bound": 3.0}], ids=["early", "late"])
def test_rank_bookkeeping_of_a_step_is_few_operations_however_deep_the_model(ranks):
    config = read_config(ROOT / "benchmarks/tensor_train.yaml")
    model = Decoder(config.model, plan_decoder(config, 4096), torch.Generator().manual_seed(0))
    with Operations() as forward, torch.no_grad():
        model(torch.arange(8)[None])
    shallow, deep = bookkeeping_operations(2, **ranks), bookkeeping_operations(6, **ranks)
    print(f"bookkeeping {shallow} and {deep} operations, forward of the model {forward.count}")
    assert shallow == deep > 0
    assert shallow <= 0.05 * forward.count
