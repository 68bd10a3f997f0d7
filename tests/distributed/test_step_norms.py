"""Norms of every layer at every ZeRO stage are those of saved weights and of a plain gradient, and change nothing."""

import json
from collections import defaultdict

import pytest
import torch
from forked import run_processes
from support import cut_back, metrics, saved_tensors, tiny_run
from test_rank_adaptation import adapting

from comera_dist.config.reader import read_config
from comera_dist.costs.budget import plan_within_budget
from comera_dist.data.batches import TrainBatches
from comera_dist.data.tasks import open_task
from comera_dist.models.family import build_model
from comera_dist.runtime.forward import count_targets

pytestmark = pytest.mark.distributed
STEPS = 3
STATIC = "train.cuda_graphs=true"
# Steps on two processes, of two micro batches each. The norms of all gradients are above 0.05, so all are clipped.
OPTIONS = [f"train.steps={STEPS}", "train.micro_batch=2", "train.grad_clip=0.05", "checkpoint.every=1"]
OPTIONS += ["checkpoint.keep=9", "optim.lr=0.01"]
VARIANTS = {
    **{f"stage{stage}": [f"train.zero_stage={stage}"] for stage in range(4)},
    **{f"static{stage}": [f"train.zero_stage={stage}", STATIC] for stage in (0, 1)},
    "whole_matrices": ["train.zero_stage=2", "optim.kind=spectral"],
    "unclipped": ["train.zero_stage=3", "train.grad_clip=0", "deepspeed.zero_optimization.sub_group_size=500"],
}
COMPARED = [name for name in VARIANTS if name not in ("static1", "unclipped")]  # with a run without norms
NORMS = "log.norms_every=1"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("norms")


@pytest.fixture(scope="module")
def runs(tiny_corpus, directory):
    """Every variant with norms, and some without them too."""

    def run(name, variant, *more):
        return tiny_run(tiny_corpus, directory, name, *OPTIONS, *VARIANTS[variant], *more)

    whole = [run(name, name, NORMS) for name in VARIANTS] + [run(f"{name}_plain", name) for name in COMPARED]
    whole.append(adapting(tiny_corpus, directory, "adapting", "train.zero_stage=1", "log.norms_every=2"))
    whole.append(adapting(tiny_corpus, directory, "adapting_plain", "train.zero_stage=1"))
    run_processes(2, "train_static", runs=whole)
    return directory


@pytest.fixture(scope="module")
def resumed(runs, tiny_corpus):
    """Runs at stage 1 after a kill a step after the checkpoint of step 2, and as soon as that was there."""
    for name in ("later", "at_once"):
        cut_back(runs, "stage1", name, 2)
    for log, count in (("metrics.jsonl", 1), ("norms.jsonl", 2)):
        path = runs / "at_once" / log
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    options = [*OPTIONS, "train.zero_stage=1", NORMS]
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, runs, name, *options) for name in ("later", "at_once")])
    return runs


def norms(directory, name):
    return [json.loads(line) for line in (directory / name / "norms.jsonl").read_text().splitlines()]


def by_layer(tensors):
    """Frobenius norm of the tensors of each layer, by the name of a parameter."""
    squares = defaultdict(float)
    for name, tensor in tensors.items():
        squares[name.rpartition(".")[0]] += float(tensor.double().square().sum())
    return {layer: square**0.5 for layer, square in squares.items()}


def weights(directory, name, step):
    prefix = "weight/"
    tensors = saved_tensors(directory, name, step).items()
    return {key.removeprefix(prefix): tensor for key, tensor in tensors if key.startswith(prefix)}


def plain_gradient(corpus, directory, name, step):
    """The gradient of the mean loss of step number `step` (from 1) at the weights of the checkpoint before it."""
    config = read_config(None, tiny_run(corpus, directory, name, *OPTIONS))
    task, size = open_task(config), config.global_batch
    (batch,) = TrainBatches(task.train(), "", 1, size, size, 0, 1, config.run.seed).step((step - 1) * size)
    model = build_model(config.model, plan_within_budget(config, task.facts), None)
    model.load_state_dict(weights(directory, name, step - 1))
    (model(*batch) / count_targets(batch)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_and_updates_are_those_between_two_checkpoints(runs, name):
    records = norms(runs, name)
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    for record in records[1:]:
        before, after = (weights(runs, name, step) for step in (record["step"] - 1, record["step"]))
        weight, update = by_layer(after), by_layer({key: after[key].double() - before[key].double() for key in after})
        assert record["weight"] == pytest.approx(weight, rel=1e-6)
        # A difference of two fp32 numbers is rounded.
        assert record["update"] == pytest.approx(update, rel=1e-5)
        assert record["update_ratio"] == pytest.approx(
            {layer: update[layer] / weight[layer] for layer in weight}, rel=1e-5
        )
        assert min(record["update"].values()) > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_those_of_plain_torch_before_clipping(runs, tiny_corpus, name):
    for record in norms(runs, name)[1:3]:
        expected = by_layer(plain_gradient(tiny_corpus, runs, name, record["step"]))
        assert record["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_squares_of_all_layers_make_the_norm_that_is_logged(runs, name):
    for record, step in zip(norms(runs, name), metrics(runs, name), strict=True):
        whole = sum(norm**2 for norm in record["gradient"].values()) ** 0.5
        assert whole == pytest.approx(step["grad_norm"], rel=1e-5)
        assert whole > 0.05


@pytest.mark.parametrize(("name", "step"), [*((name, STEPS) for name in COMPARED), ("adapting", 14)])
def test_measuring_changes_no_bit(runs, name, step):
    expected, found = saved_tensors(runs, f"{name}_plain", step), saved_tensors(runs, name, step)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert not (runs / f"{name}_plain" / "norms.jsonl").exists()


def test_only_due_steps_have_a_line_also_where_ranks_change(runs):
    records = norms(runs, "adapting")
    assert [record["step"] for record in records] == list(range(2, 15, 2))
    assert records[0]["weight"].keys() == records[-1]["weight"].keys()


@pytest.mark.parametrize("name", ["later", "at_once"])
def test_a_resumed_run_repeats_and_loses_no_line(resumed, name):
    assert norms(resumed, name) == norms(resumed, "stage1")
