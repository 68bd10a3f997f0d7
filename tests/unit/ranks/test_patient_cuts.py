"""Which indices go and which are added, against a slow greedy choice made layer by layer with plain numbers."""

from math import prod, sqrt
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comera_dist.config.ranks_section import Ranks
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, plan_tt
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import may_go
from comera_dist.ranks.patient_cuts import GRACE, PatientCuts
from comera_dist.ranks.policy import Situation, counts, importance
from comera_dist.ranks.threshold import Threshold

SHAPES = {
    "embed": TTMShape(61, 19, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1)),
    "layers.0.up": TTShape(24, 30, (6, 4), (5, 6), (1, 5, 7, 6, 1)),
    "layers.0.down": plan_tt(30, 24, 1, 7),
    "layers.1.down": TTShape(24, 20, (24,), (4, 5), (1, 4, 3, 1)),
}
LAYOUT = GateLayout.of(SHAPES)
SEEDS = st.integers(0, 2**32 - 1)


def one_bond(rank):
    """A layer 24 → 30 whose index stores 24 + 30 numbers and a gate."""
    return GateLayout.of({"layer": TTShape(24, 30, (24,), (30,), (1, rank, 1))})


def ranks(**keys):
    """Limits, and keys of the policy, which cuts at once what is below a fifth unless `keys` say otherwise."""
    limits = {key: keys.pop(key) for key in ("min_rank", "removable") if key in keys}
    return Ranks(adapt=True, policy=Threshold(**{"patience": 1, "shrink_when": 0.0, "threshold": 0.2} | keys), **limits)


def decide(layout, importance_G, below_G, config, **keys):
    """The decision at a sync that finds this importance and these counts, and the new counts."""
    numbers_G = importance_G, torch.ones_like(importance_G), importance_G
    situation = Situation(layout, 1, *numbers_G, may_go(layout, importance_G, config), **keys)
    policy = PatientCuts(config.policy, layout, {"counts": {"below": counts(layout, below_G)}})
    decision = policy.decide(situation)
    return SimpleNamespace(cut_G=decision.cut_G, added_B=decision.added_B, below_G=policy.below_G)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def nothing_below(layout):
    return torch.zeros(layout.num_gates, dtype=torch.int64)


def marked(mask_G):
    return mask_G.nonzero().flatten().tolist()


def random_importance(seed, layout=LAYOUT, spread=2.0):
    """Log-normal, so that bonds have both weak indices and leading ones."""
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(layout.num_gates, dtype=torch.float64, generator=generator)).exp()


def sync_after_sync(layout, importances, config, **keys):
    below_G, decisions = nothing_below(layout), []
    for importance_G in importances:
        decisions.append(decide(layout, importance_G, below_G, config, **keys))
        below_G = decisions[-1].below_G
    return decisions


# A slow oracle: lists of plain numbers, one list a bond.


def stored(bonds):
    """Parameters of all layers at these bonds, gates included; a layer with an empty bond stores nothing."""
    total = 0
    for name, shape in SHAPES.items():
        if all(bonds[name]):
            chain = [1, *bonds[name], 1]
            sides = zip(chain, shape.core_modes, chain[1:], strict=False)
            total += sum(left * prod(modes) * right for left, modes, right in sides) + sum(bonds[name])
    return total


def bonds_without(gone):
    """Ranks by layer without the indices (layer, bond, index) in `gone`."""
    bonds = {name: list(shape.bonds) for name, shape in SHAPES.items()}
    for name, bond, _ in gone:
        bonds[name][bond] -= 1
    return bonds


def greedy(importance_G, config, budget):
    """The indices that go, in order: the least importance² a parameter, first of those below the threshold."""
    full = bonds_without([])
    choices = []
    for name, gates in LAYOUT.gates_by_layer(importance_G).items():
        for bond, gate in enumerate(gates):
            values = gate.tolist()
            line = config.policy.threshold * sqrt(sum(v * v for v in values) / len(values))
            larger = {**full, name: [r + (k == bond) for k, r in enumerate(full[name])]}
            cost = stored(larger) - stored(full)
            spared = 0 if name in config.removable else config.min_rank
            for index in sorted(range(len(values)), key=lambda i: -values[i])[spared:]:
                choices.append((values[index] >= line, values[index] ** 2 / cost, (name, bond, index)))
    gone = []
    for _, _, choice in sorted(choices):
        if stored(bonds_without(gone)) <= budget:
            break
        gone.append(choice)
    return gone


def as_mask(gone):
    masks = {name: [torch.zeros(r, dtype=torch.bool) for r in shape.bonds] for name, shape in SHAPES.items()}
    for name, bond, index in gone:
        masks[name][bond][index] = True
    return torch.cat([mask for bonds in masks.values() for mask in bonds])


# The early stage: threshold, patience and what a cut has to save.


def test_an_index_below_its_share_of_the_bond_s_mean_square_goes():
    layout = GateLayout.of({"layer": TTShape(24, 30, (6, 4), (30,), (1, 4, 3, 1))})
    # Root mean squares 2 and 20: what is little in one bond is much in the other.
    importance_G = numbers(4 - 1e-9, 0.39, 0.41, 1e-5, 20 * sqrt(3) - 1, 3.9, 4.2)
    rms = [sqrt(float(part.square().mean())) for part in importance_G.split([4, 3])]
    expected = [k for k, v in enumerate(importance_G.tolist()) if v < 0.2 * rms[k >= 4]]
    assert expected == [1, 3, 5]
    decision = decide(layout, importance_G, nothing_below(layout), ranks())
    assert marked(decision.cut_G) == expected
    assert decision.cut_G.any() or decision.added_B.any()
    assert not decision.added_B.any()


def test_an_index_goes_only_after_so_many_syncs_in_a_row_below():
    weak, strong = numbers(1, 1, 0.01, 1), numbers(1, 1, 1, 1)
    layout, config = one_bond(4), ranks(patience=3)
    decisions = sync_after_sync(layout, [weak, weak, strong, weak, weak, weak], config)
    assert [d.below_G[2].item() for d in decisions] == [1, 2, 0, 1, 2, 3]
    assert [marked(d.cut_G) for d in decisions] == [[], [], [], [], [], [2]]
    assert not any(d.below_G[[0, 1, 3]].any() for d in decisions)


def test_nothing_goes_until_it_saves_enough_and_counters_go_on():
    layout = one_bond(10)
    one_weak = numbers(*[1] * 9, 0.01)
    two_weak = numbers(*[1] * 8, 0.01, 0.01)
    decisions = sync_after_sync(layout, [one_weak, one_weak, two_weak, two_weak], ranks(patience=2, shrink_when=0.2))
    assert [d.below_G[9].item() for d in decisions] == [1, 2, 3, 4]
    assert [marked(d.cut_G) for d in decisions] == [[], [], [], [8, 9]]


@pytest.mark.parametrize("min_rank", [1, 3, 9])
def test_the_most_important_indices_are_kept_to_the_minimal_rank(min_rank):
    importance_G = random_importance(3)
    decision = decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(min_rank=min_rank), budget=0.0)
    gates, cut = LAYOUT.gates_by_layer(importance_G), LAYOUT.gates_by_layer(decision.cut_G)
    for name, shape in SHAPES.items():
        for k, rank in enumerate(shape.bonds):
            best = gates[name][k].argsort(descending=True)[:min_rank].sort().values
            assert torch.equal((~cut[name][k]).nonzero().flatten(), best), (name, k, rank)


def test_only_removable_layers_vanish():
    config = ranks(removable=("layers.0.*",))
    decision = decide(LAYOUT, random_importance(4), nothing_below(LAYOUT), config, budget=0.0)
    left = LAYOUT.by_layer(LAYOUT.after_cut(decision.cut_G))
    assert left == {"embed": [1, 1], "layers.0.up": [0] * 3, "layers.0.down": [0], "layers.1.down": [1, 1]}


def test_bonds_that_do_not_adapt_are_left_alone():
    layout = GateLayout.of(SHAPES, ("layers.0.*",))
    outside_G = ~layout.adapted_B[layout.bond_G]
    importance_G = torch.where(outside_G, 1e-3, random_importance(5))
    importance_G[-1] = 1e3  # or every index of that bond would be equally weak
    for keys in ({}, {"budget": 0.0, "is_deadline": True}):
        decision = decide(layout, importance_G, nothing_below(layout), ranks(threshold=0.9), **keys)
        assert decision.cut_G.any()
        assert not decision.cut_G[outside_G].any()
        assert not decision.below_G[outside_G].any()
    flat_G = torch.ones(layout.num_gates, dtype=torch.float64)
    grown = decide(layout, flat_G, nothing_below(layout), ranks(grow=1), planned_size=1e9)
    assert torch.equal(grown.added_B > 0, layout.adapted_B & (grown.added_B > 0))
    assert grown.added_B.any()


def test_a_bond_without_any_importance_is_cut_and_does_not_grow():
    """Where pressure has closed all gates of a layer, none is below its share of nothing; each is useless all the
    same."""
    importance_G = torch.ones(LAYOUT.num_gates, dtype=torch.float64)
    up = [name == "layers.0.up" for name, _ in LAYOUT.bond_names]
    importance_G[torch.tensor(up)[LAYOUT.bond_G]] = 0.0
    config = ranks(grow=2, removable=("layers.0.down",))
    decision = decide(LAYOUT, importance_G, nothing_below(LAYOUT), config, planned_size=1e9)
    assert LAYOUT.by_layer(LAYOUT.after_cut(decision.cut_G))["layers.0.up"] == [1, 1, 1]
    assert LAYOUT.by_layer(decision.added_B)["layers.0.up"] == [0, 0, 0]
    config = ranks(grow=2, removable=("layers.0.up",))
    decision = decide(LAYOUT, importance_G, nothing_below(LAYOUT), config, planned_size=1e9)
    assert LAYOUT.by_layer(LAYOUT.after_cut(decision.cut_G))["layers.0.up"] == [0, 0, 0]


def test_a_layer_that_vanishes_does_not_grow_at_another_bond():
    importance_G = torch.ones(LAYOUT.num_gates, dtype=torch.float64)
    dead_B = torch.tensor([bond == ("layers.0.up", 2) for bond in LAYOUT.bond_names])
    importance_G[dead_B[LAYOUT.bond_G]] = 0.0
    kept, removed = (
        decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(grow=1, removable=removable), planned_size=1e9)
        for removable in ((), ("layers.0.up",))
    )
    assert LAYOUT.by_layer(LAYOUT.after_cut(kept.cut_G))["layers.0.up"] == [5, 1, 6]
    assert LAYOUT.by_layer(LAYOUT.after_cut(removed.cut_G))["layers.0.up"] == [0, 0, 0]
    assert LAYOUT.by_layer(removed.added_B)["layers.0.up"] == [0, 0, 0]
    assert removed.added_B.any()


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(0.3, 1.0))
def test_the_early_stage_never_goes_below_the_target(seed, share):
    importance_G, full = random_importance(seed), LAYOUT.size(LAYOUT.ranks_B)
    floor = share * full
    freely = decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(threshold=0.5))
    decision = decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(threshold=0.5), floor=floor)
    size = LAYOUT.size(LAYOUT.after_cut(decision.cut_G))
    assert size >= floor
    assert not (decision.cut_G & ~freely.cut_G).any()
    if LAYOUT.size(LAYOUT.after_cut(freely.cut_G)) >= floor:
        assert torch.equal(decision.cut_G, freely.cut_G)
    else:
        # One index less would be enough: the next in line leads below the floor.
        gone = greedy(importance_G, ranks(threshold=0.5), size)
        following = greedy(importance_G, ranks(threshold=0.5), size - 1)
        assert torch.equal(decision.cut_G, as_mask(gone))
        assert stored(bonds_without(following)) < floor


def test_a_model_that_is_below_the_target_is_not_cut_early():
    weak = numbers(1, 1, 0.01, 0.01)
    layout = one_bond(4)
    size = layout.size(layout.ranks_B)
    assert not decide(layout, weak, nothing_below(layout), ranks(), floor=size).cut_G.any()
    assert not decide(layout, weak, nothing_below(layout), ranks(), floor=size + 1).cut_G.any()
    assert marked(decide(layout, weak, nothing_below(layout), ranks(), floor=size - 55).cut_G) == [2]


# The late stage: a budget.


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(0.05, 1.1), st.sampled_from([(), ("layers.0.up",)]), st.sampled_from([1e-9, 1.0, 1e9]))
def test_a_budget_is_met_with_the_fewest_indices_of_least_worth(seed, share, removable, scale):
    """Whatever the scale of the loss: gradients of 1e-6 make importances whose squares are nothing beside 1."""
    importance_G, config = scale * random_importance(seed), ranks(removable=removable)
    budget = share * LAYOUT.size(LAYOUT.ranks_B)
    decision = decide(LAYOUT, importance_G, nothing_below(LAYOUT), config, budget=budget)
    gone = greedy(importance_G, config, budget)
    assume(stored(bonds_without(gone)) <= budget)
    assert torch.equal(decision.cut_G, as_mask(gone))
    assert LAYOUT.size(LAYOUT.after_cut(decision.cut_G)) == stored(bonds_without(gone))
    if gone:
        assert stored(bonds_without(gone[:-1])) > budget


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(0.3, 1.0))
def test_no_index_is_gone_that_the_target_could_keep(seed, share):
    importance_G, budget = random_importance(seed), share * LAYOUT.size(LAYOUT.ranks_B)
    before = decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(), budget=budget).cut_G
    keys = {"budget": budget, "floor": budget, "is_deadline": True}
    cut_G = decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(), **keys).cut_G
    assert LAYOUT.size(LAYOUT.after_cut(cut_G)) <= budget or torch.equal(cut_G, before)
    for gate in marked(cut_G):
        one_more = cut_G.clone()
        one_more[gate] = False
        assert LAYOUT.size(LAYOUT.after_cut(one_more)) > budget


def test_at_the_deadline_small_indices_fill_what_a_large_one_would_leave_empty():
    """One index of the large layer is worth least a parameter, but stores 1,001 where 300 are asked for."""
    layout = GateLayout.of(
        {"small": TTShape(24, 30, (24,), (30,), (1, 10, 1)), "large": TTShape(400, 600, (400,), (600,), (1, 3, 1))}
    )
    importance_G = numbers(*range(10, 20), 0.1, 100, 100)
    target = layout.size(layout.ranks_B) - 300
    keys = {"budget": target, "floor": target, "is_deadline": True}
    cut_G = decide(layout, importance_G, nothing_below(layout), ranks(threshold=0.0), **keys).cut_G
    assert marked(cut_G) == [0, 1, 2, 3, 4, 5]
    assert target - layout.size(layout.after_cut(cut_G)) == 6 * 55 - 300


def test_only_the_deadline_cuts_an_index_that_leads_below_the_target():
    """The index of the large layer is ready, and small ones could meet the target once the deadline chooses freely."""
    layout = GateLayout.of(
        {"small": TTShape(24, 30, (24,), (30,), (1, 10, 1)), "large": TTShape(400, 600, (400,), (600,), (1, 3, 1))}
    )
    importance_G, target = numbers(*range(10, 20), 0.1, 100, 100), layout.size(layout.ranks_B) - 300
    keys = {"budget": target + 1, "floor": target}
    decision = decide(layout, importance_G, nothing_below(layout), ranks(threshold=0.0), **keys)
    assert (marked(decision.cut_G), marked(decision.below_G)) == ([], [10])


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(0.3, 1.0))
def test_before_the_deadline_no_cut_leads_below_the_target(seed, share):
    importance_G, size = random_importance(seed), LAYOUT.size(LAYOUT.ranks_B)
    keys = {"budget": share * size, "floor": 0.98 * share * size}
    decision = decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(), **keys)
    assert LAYOUT.size(LAYOUT.after_cut(decision.cut_G)) >= keys["floor"]
    assert not decision.cut_G[decision.below_G == 0].any()


def test_a_budget_that_is_met_cuts_nothing_whatever_the_threshold():
    importance_G = random_importance(6)
    size = LAYOUT.size(LAYOUT.ranks_B)
    assert decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks()).cut_G.any()
    assert not decide(LAYOUT, importance_G, nothing_below(LAYOUT), ranks(), budget=size).cut_G.any()


def test_the_deadline_waits_for_nothing():
    layout, flat = one_bond(10), numbers(*range(1, 11))
    config = ranks(patience=3, shrink_when=0.9)
    budget = layout.size(layout.ranks_B) - 1
    waiting = decide(layout, flat, nothing_below(layout), config, budget=budget)
    assert (marked(waiting.cut_G), marked(waiting.below_G)) == ([], [0])
    at_last = decide(layout, flat, nothing_below(layout), config, budget=budget, is_deadline=True)
    assert marked(at_last.cut_G) == [0]


def test_before_the_deadline_a_budget_has_patience():
    layout, flat = one_bond(10), numbers(*range(1, 11))
    budget = layout.size(layout.ranks_B) - 2 * 55
    decisions = sync_after_sync(layout, [flat, flat, flat], ranks(patience=3), budget=budget)
    assert [marked(d.cut_G) for d in decisions] == [[], [], [0, 1]]


# Growth.


def grow(layout, importance_G, below_G=None, config=None, planned_size=1e9, **keys):
    below_G = nothing_below(layout) if below_G is None else below_G
    return decide(layout, importance_G, below_G, config or ranks(grow=2), planned_size=planned_size, **keys)


def test_a_bond_grows_while_all_its_indices_matter():
    layout = GateLayout.of(
        {"a": TTShape(24, 30, (24,), (30,), (1, 4, 1)), "b": TTShape(24, 30, (24,), (30,), (1, 4, 1))}
    )
    flat, uneven = [1.0, 0.9, 1.1, 0.8], [1.0, 2.0, 2.0, 0.5]
    assert grow(layout, numbers(*flat, *uneven)).added_B.tolist() == [2, 0]
    assert grow(layout, numbers(*uneven, *flat)).added_B.tolist() == [0, 2]
    assert not grow(layout, numbers(*flat, *flat), config=ranks(grow=0)).added_B.any()


def test_a_bond_with_a_weak_or_a_new_index_does_not_grow():
    layout, config = one_bond(4), ranks(grow=2, threshold=0.8, patience=2)
    flat = numbers(1, 1, 1, 0.7)
    assert grow(layout, flat, config=ranks(grow=2)).added_B.tolist() == [2]
    weak = grow(layout, flat, config=config)
    assert (weak.added_B.tolist(), weak.below_G.tolist()) == ([0], [0, 0, 0, 1])
    flat = numbers(1, 1, 1, 1)
    assert grow(layout, flat, torch.tensor([0, 0, 0, -2]), config).added_B.tolist() == [0]
    assert grow(layout, flat, torch.tensor([0, 0, 0, -1]), config).added_B.tolist() == [2]


def test_the_late_stage_does_not_grow():
    layout, flat = one_bond(4), numbers(1, 1, 1, 1)
    assert grow(layout, flat).added_B.tolist() == [2]
    assert grow(layout, flat, budget=1e9).added_B.tolist() == [0]


def test_growth_ends_where_the_neighbours_cannot_fill_more():
    layout = GateLayout.of({"layer": TTShape(24, 30, (4, 6), (5, 6), (1, 3, 12, 6, 1))})
    flat_G = torch.ones(layout.num_gates, dtype=torch.float64)
    # At most 4, min(3·6, 5·6) = 18 and min(12·5, 6) = 6.
    assert grow(layout, flat_G, config=ranks(grow=50)).added_B.tolist() == [1, 6, 0]


def test_growth_does_not_count_on_neighbours_that_are_being_cut():
    layout = GateLayout.of({"layer": TTShape(24, 30, (4, 6), (5, 6), (1, 4, 12, 6, 1))})
    importance_G = torch.ones(layout.num_gates, dtype=torch.float64)
    importance_G[:2] = 0.01
    decision = grow(layout, importance_G, config=ranks(grow=50))
    assert marked(decision.cut_G) == [0, 1]
    assert decision.added_B.tolist() == [0, 0, 0], "two indices of bond 1 fill 12 of bond 2 at most"


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(0.9, 1.3), st.integers(1, 4))
def test_growth_stays_within_the_planned_size_and_within_its_neighbours(seed, share, most):
    importance_G = random_importance(seed, spread=0.3)
    weak = torch.rand(LAYOUT.num_gates, generator=torch.Generator().manual_seed(seed)) < 0.05
    importance_G = torch.where(weak, 1e-3, importance_G)
    size = LAYOUT.size(LAYOUT.ranks_B)
    decision = grow(LAYOUT, importance_G, config=ranks(grow=most, threshold=0.1), planned_size=share * size)
    ranks_B = LAYOUT.after_cut(decision.cut_G) + decision.added_B
    grown_B = decision.added_B > 0
    assert (decision.added_B <= most).all()
    assert LAYOUT.size(ranks_B) <= max(share * size, LAYOUT.size(LAYOUT.after_cut(decision.cut_G)))
    assert not grown_B.any() or LAYOUT.size(ranks_B) <= share * size
    assert (ranks_B <= torch.tensor(LAYOUT.largest_ranks(ranks_B)))[grown_B].all()


def test_new_indices_have_a_grace_period():
    """They begin with importance zero, because the core to their right does."""
    layout, patience = one_bond(4), 2
    config = ranks(patience=patience)
    below_G = torch.tensor([0, 0, 0, -GRACE * patience])
    seen = []
    for _ in range(GRACE * patience + patience):
        decision = decide(layout, numbers(1, 1, 1, 0), below_G, config)
        below_G = decision.below_G
        seen.append(marked(decision.cut_G))
    assert seen == [[]] * (len(seen) - 1) + [[3]]
    assert decide(layout, numbers(1, 1, 1, 1), torch.tensor([0, 0, 0, -3]), config).below_G.tolist() == [0, 0, 0, -2]


def test_only_the_deadline_cuts_a_new_index_in_its_grace_period():
    layout, below_G = one_bond(4), torch.tensor([0, 0, 0, -3])
    keys = {"budget": layout.size(layout.ranks_B) - 1}
    importance_G = numbers(1, 1, 1, 0)
    assert not decide(layout, importance_G, below_G, ranks(), **keys).cut_G.any()
    assert marked(decide(layout, importance_G, below_G, ranks(), is_deadline=True, **keys).cut_G) == [3]


# Invariance.


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.booleans())
def test_rescaling_cores_against_gates_does_not_change_the_decision(seed, is_late):
    """A gate times c, its core through c: the gradient is through c, its second moment through c²."""
    generator = torch.Generator().manual_seed(seed)
    gate_G = torch.randn(LAYOUT.num_gates, dtype=torch.float64, generator=generator)
    second_moment_G = random_importance(seed)
    scale_G = 2.0 ** torch.randint(-12, 12, gate_G.shape, generator=generator)
    below_G = torch.randint(-3, 4, gate_G.shape, generator=generator)
    keys = {"planned_size": 1e9, "budget": 0.5 * LAYOUT.size(LAYOUT.ranks_B) if is_late else None}
    plain, scaled = (
        decide(LAYOUT, importance(g, v), below_G, ranks(grow=1, patience=3, threshold=0.3), **keys)
        for g, v in ((gate_G, second_moment_G), (gate_G * scale_G, second_moment_G / scale_G**2))
    )
    assert plain.below_G.any()
    for key in ("cut_G", "added_B", "below_G"):
        assert torch.equal(getattr(plain, key), getattr(scaled, key))


@pytest.mark.parametrize("budget", [None, 0.0])
def test_a_model_without_gates_has_nothing_to_decide(budget):
    layout = GateLayout.of({"table": TTMShape(61, 20, (61,), (20,), (1, 1))})
    decision = decide(layout, numbers(), nothing_below(layout), ranks(grow=1), budget=budget, planned_size=1e9)
    assert not decision.cut_G.any()
    assert not decision.added_B.any()
    assert decision.below_G.shape == (0,)
