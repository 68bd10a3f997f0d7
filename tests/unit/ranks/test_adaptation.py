"""Targets, stages, budgets and verdicts of a run, on a model that exists only as gates."""

import json
import re

import pytest
import torch
from keep_largest import KeepLargest
from support import TINY

from comera_dist.config.reader import read_config
from comera_dist.config.registry import POLICIES
from comera_dist.errors import ConfigError
from comera_dist.formats.base import Resizable
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.ranks.adaptation import RankAdaptation

VOCABULARY = 64
NORMS = 16 * 5


class OneProcess:
    """The process group of one process."""

    device = torch.device("cpu")

    def sum_tensor(self, values):
        return values

    def max(self, value):
        return value

    def spread(self, values):
        return 0.0


class Gates:
    """Gates whose importance falls along every bond, and a record of what was pressed."""

    def __init__(self, shapes):
        ranks = [rank for shape in shapes.values() for rank in shape.bonds]
        # Gates are fp32 wherever they live.
        self.values = torch.cat([torch.zeros(0), *(1.0 / torch.arange(1, rank + 1) for rank in ranks)]).double()

    def shares(self):
        return self.values, torch.ones_like(self.values)

    def copy(self):
        return self.values

    def press(self, weights):
        self.pressed = weights


class Engine:
    def __init__(self, plan):
        self.processes = OneProcess()
        self.resizable = {name: layer for name, layer in plan.items() if isinstance(layer, Resizable)}
        self.gates = Gates(self.resizable)


def adaptation(*overrides, steps=100, state=None):
    """Adaptation of the tiny decoder's projections, its plan and their parameters."""
    fixed = [o for o in TINY if not o.startswith("train.steps")]
    base = ["ranks.adapt=true", "ranks.layers=['*_proj']", "ranks.sync_every=1", "tensor.rank=6"]
    config = read_config(None, [*fixed, *base, f"train.steps={steps}", *overrides])
    plan = plan_decoder(config, VOCABULARY)
    params = sum(layer.parameters for layer in plan.values()) + NORMS
    ranks = RankAdaptation(config, plan, params, Engine(plan))
    ranks.start(state)
    return ranks, plan, params


def projections(plan):
    return {name: layer for name, layer in plan.items() if name.endswith("_proj")}


def run(ranks, plan, steps, losses=None):
    """Goes through the steps as a session does; returns the plan at the end and the records."""
    records = []
    for step in range(1, steps + 1):
        loss = losses[step - 1] if losses else 3.0
        ranks.objective.pressure(torch.tensor(loss, dtype=torch.float64), step - 1)
        record, resize = ranks.sync(step)
        records.append(record)
        plan = resize.plan(plan)
        ranks.resized(Engine(plan))
    return plan, records


def test_target_compression_counts_the_adapted_layers():
    ranks, plan, _ = adaptation("ranks.target_compression=2")
    final, records = run(ranks, plan, 100)
    stored = sum(layer.parameters for layer in projections(final).values())
    dense = sum(layer.dense_parameters for layer in projections(final).values())
    assert dense / stored == pytest.approx(2, rel=0.02)
    assert records[-1]["size"] == stored
    assert final["lm_head"] == plan["lm_head"]
    assert ranks.verdict().startswith("Target reached: ")


def test_target_params_counts_the_whole_model():
    params_of = lambda plan: sum(layer.parameters for layer in plan.values()) + NORMS  # noqa: E731
    target = int(0.75 * adaptation()[2])
    ranks, plan, _ = adaptation(f"ranks.target_params={target}")
    final, _ = run(ranks, plan, 100)
    assert params_of(final) == pytest.approx(target, rel=0.02)
    assert ranks.verdict().startswith("Target reached: ")


def test_target_fraction_counts_from_the_end_of_the_early_stage():
    ranks, plan, _ = adaptation("ranks.target_fraction=0.5", "ranks.policy.threshold=0.5")
    _, records = run(ranks, plan, 100)
    early = [record["size"] for record in records if record["stage"] == "early"]
    assert early[-1] < early[0], "the early stage of this test cuts nothing"
    assert records[-1]["size"] == pytest.approx(early[-1] / 2, rel=0.02)


def test_stages_follow_the_configured_fractions_of_the_run():
    ranks, plan, _ = adaptation("ranks.target_compression=2", "ranks.late_start=0.4", "ranks.late_end=0.8")
    _, records = run(ranks, plan, 100)
    stages = [record["stage"] for record in records]
    assert stages.index("late") + 1 == 40
    assert "settled" in stages[78:82]
    assert stages[-1] == "settled"


def test_size_never_rises_and_descends_in_several_cuts():
    ranks, plan, _ = adaptation("ranks.target_compression=2.5")
    sizes = [record["size"] for record in run(ranks, plan, 100)[1]]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 3


def test_all_gates_of_adapted_layers_are_of_one_age():
    """A new gate comes at a sync at which all of them begin anew, for they share one count of Adam's steps."""
    ranks, plan, _ = adaptation("ranks.target_compression=2", "ranks.policy.grow=1", "ranks.policy.shrink_when=0.01")
    added, balanced = [], []
    for step in range(1, 101):
        ranks.objective.pressure(torch.tensor(3.0, dtype=torch.float64), step - 1)
        # All matter alike but for one layer, whose indices make room for new ones elsewhere.
        parts = ranks.layout.gates_by_layer(torch.ones(ranks.layout.num_gates).double())
        for gate in parts["model.layers.0.mlp.down_proj"]:
            gate[1:] = 2.0**-20
        ranks.engine.gates.values = torch.cat([gate for gates in parts.values() for gate in gates])
        record, resize = ranks.sync(step)
        added.append(record["added"])
        balanced.append(resize.balanced == tuple(projections(plan)))
        plan = resize.plan(plan)
        ranks.resized(Engine(plan))
    assert any(added)
    assert all(anew for anew, new in zip(balanced, added, strict=True) if new)
    assert not balanced[-1]


def test_without_a_target_there_is_no_late_stage_and_no_verdict():
    ranks, plan, _ = adaptation("ranks.policy.threshold=0.5")
    _, records = run(ranks, plan, 20)
    assert {record["stage"] for record in records} == {"early"}
    assert ranks.verdict() is None
    assert records[-1]["size"] < records[0]["size"]


def test_a_loss_bound_that_is_not_met_keeps_the_size_and_says_so():
    ranks, plan, _ = adaptation("ranks.target_compression=2", "ranks.loss_bound=2.0", "ranks.pressure=0.1")
    final, records = run(ranks, plan, 100)
    assert projections(final) == projections(plan)
    assert records[-1]["stage"] == "late"
    assert "Target missed: " in ranks.verdict()
    assert ranks.verdict().endswith("because the loss stayed above ranks.loss_bound = 2.0.")


def test_a_size_below_the_target_is_not_blamed_on_the_loss():
    """The loss leaves its bound after the last cut, of an index that holds more than the tolerance."""
    ranks, plan, _ = adaptation("ranks.target_fraction=0.47", "ranks.loss_bound=4", "ranks.layers=['*.q_proj']")
    run(ranks, plan, 100, [3.0] * 72 + [9.0] * 28)
    assert "(-11.3%), because the indices that ranks.policy = threshold cut last" in ranks.verdict()


def test_a_loss_bound_that_is_met_again_lets_the_size_go_on():
    losses = [3.0] * 60 + [1.0] * 140
    ranks, plan, _ = adaptation("ranks.target_compression=2", "ranks.loss_bound=2.0", steps=200)
    _, records = run(ranks, plan, 200, losses)
    assert records[59]["size"] == records[0]["size"]
    assert ranks.verdict().startswith("Target reached: ")


def test_a_run_that_ends_before_its_late_stage_says_so():
    ranks, plan, _ = adaptation("ranks.target_fraction=0.5")
    run(ranks, plan, 10)
    assert ranks.verdict() == "The late stage, and with it ranks.target_fraction, was not reached."


def test_a_policy_that_cuts_too_little_or_too_much_is_named_in_the_verdict():
    POLICIES.add("keep_largest", KeepLargest)
    try:
        for keep, reason in ((5, "cut no further index at ranks.min_rank = 1, or"), (1, "cut last hold more than the")):
            ranks, plan, _ = adaptation(
                "ranks.target_compression=2", f"ranks.policy={{kind: keep_largest, keep: {keep}}}"
            )
            final, records = run(ranks, plan, 100)
            assert {rank for layer in projections(final).values() for rank in layer.bonds} <= {keep, 4}
            assert final["lm_head"] == plan["lm_head"]
            assert records[-1]["oldest"] == 100
            assert f"ranks.policy = keep_largest {reason}" in ranks.verdict()
    finally:
        POLICIES.remove("keep_largest")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("ranks.target_compression=1000", "ranks.target_compression = 1000.0 asks for 4 parameters"),
        ("ranks.target_compression=1.01", "at ranks.min_rank = 1; name more than "),
        ("ranks.target_params=100", "ranks.target_params = 100 asks for "),
        ("ranks.target_fraction=0.1469", "ranks.min_rank = 1; name 0.147 or more"),
        ("ranks.layers=['*_porj']", "ranks.layers: the pattern '*_porj' matches no layer with ranks; names look like "),
        ("model.format=dense", "ranks.adapt = true and no layer has ranks that can change"),
        (
            "ranks={adapt: true, sync_every: 1, layers: ['*.o_proj'], removable: ['*.q_proj']}",
            "ranks.removable: the pattern '*.q_proj' matches no layer of ranks.layers, whose ranks alone",
        ),
        ("ranks.removable=['lm_head']", "ranks.removable matches lm_head, which no model can do without"),
    ],
)
def test_what_cannot_be_is_one_sentence(override, sentence):
    with pytest.raises(ConfigError) as caught:
        adaptation(override)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_has_begun_with_an_impossible_target_goes_on():
    """An earlier version took it, and a resume may not change it."""
    begun, _, _ = adaptation("ranks.target_fraction=0.5")
    adaptation("ranks.target_fraction=0.1", state=begun.state())


@pytest.mark.parametrize("target", ["target_params", "target_compression"])
def test_a_refused_target_names_the_values_of_its_key_that_are_possible(target):
    with pytest.raises(ConfigError) as caught:
        adaptation(f"ranks.{target}={10**6}")
    first, last = map(float, re.findall(r"[\d.]+\d", str(caught.value).split("; name ")[1]))
    step, is_open = (1, (0, 1)) if target == "target_params" else (0.01, (1, 0))
    for possible in (first + step * is_open[0], last - step * is_open[1]):
        adaptation(f"ranks.{target}={possible:.10g}")
    for impossible in (first - step, last + step):
        with pytest.raises(ConfigError):
            adaptation(f"ranks.{target}={impossible:.10g}")


@pytest.mark.parametrize("target", ["target_params=3000", "target_compression=1.2"])
def test_a_target_of_layers_whose_ranks_are_the_smallest_names_no_values(target):
    """The range that it named was empty: `2744 or more, and less than 2744`."""
    with pytest.raises(ConfigError) as caught:
        adaptation(f"ranks.{target}", "model.format=block_train", "tensor.rank=4")
    key = target.partition("=")[0]
    assert str(caught.value).endswith(f"; none of their ranks can be cut, so plan larger ranks, or remove ranks.{key}")


@pytest.mark.parametrize("at", [5, 35, 50, 90])
def test_restored_it_goes_on_identically(at):
    overrides = ["ranks.target_compression=2", "ranks.loss_bound=9.0", "ranks.policy.patience=3"]
    whole, plan, _ = adaptation(*overrides)
    expected, records = run(whole, plan, 100)
    first, plan, _ = adaptation(*overrides)
    middle, _ = run(first, plan, at)
    second, _, _ = adaptation(*overrides)
    second.attach(Engine(middle))
    second.start(json.loads(json.dumps(first.state())))
    assert torch.equal(second.engine.gates.pressed, first.engine.gates.pressed)
    again = []
    for step in range(at + 1, 101):
        second.objective.pressure(torch.tensor(3.0, dtype=torch.float64), step - 1)
        record, resize = second.sync(step)
        again.append(record)
        middle = resize.plan(middle)
        second.resized(Engine(middle))
    assert again == records[at:]
    assert middle == expected
