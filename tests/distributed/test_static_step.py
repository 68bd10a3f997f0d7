"""What a GPU captures, run on CPUs as it is, trains bit for bit like the step through DeepSpeed."""

import math

import pytest
import torch
from forked import run_processes
from support import cut_back, metrics, saved_tensors, tiny_run
from test_rank_adaptation import adapting, syncs

pytestmark = pytest.mark.distributed
STAGES = (0, 1, 2)
SEQUENCES = 8  # of an optimizer step
MATRIX = [(stage, accumulation) for stage in STAGES for accumulation in (1, 2)]
VARIANTS = {
    "bf16": ["train.precision=bf16", "train.zero_stage=0"],
    "clipped": ["train.grad_clip=0.1", "train.zero_stage=0"],
    "tied": ["model.tie_embeddings=true", "model.bigram_rows=90", "model.gated_attention=true", "train.zero_stage=1"],
    "dense": ["model.format=dense", "train.zero_stage=0"],
    "documents": ["data.documents=separate", "train.zero_stage=0"],
    "spectral": ["optim.kind=spectral", "train.zero_stage=0"],
}
# Compilers take longest over layers of formats; tests/unit/runtime/test_graphs.py compiles those of several formats.
COMPILED = ["train.compile=true", "model.format={rest: dense, mlp: tensor}", "train.zero_stage=0"]
STATIC = "train.cuda_graphs=true"


class Calls:
    """Scenarios for one launch of processes, and what they returned on the first of them."""

    def __init__(self, corpus, directory):
        self._corpus, self._directory, self._calls, self._keys = corpus, directory, [], []

    def add(self, key, scenario, *options, **arguments):
        name = "_".join(map(str, key))
        self.add_call(
            key,
            scenario,
            overrides=tiny_run(self._corpus, self._directory, name, "optim.lr=0.01", *options),
            **arguments,
        )

    def add_call(self, key, scenario, **arguments):
        self._calls.append([scenario, arguments])
        self._keys.append(key)

    def add_both(self, key, *options, **arguments):
        """The same steps through DeepSpeed and static."""
        self.add((*key, "eager"), "make_steps", *options, **arguments)
        self.add((*key, "static"), "make_steps", *options, STATIC, **arguments)

    def run(self, count):
        return dict(zip(self._keys, run_processes(count, "several", calls=self._calls)[0], strict=True))


@pytest.fixture(scope="module")
def one(tiny_corpus, tmp_path_factory):
    """Everything on one process."""
    calls = Calls(tiny_corpus, tmp_path_factory.mktemp("one"))
    for stage, accumulation in MATRIX:
        options = [f"train.zero_stage={stage}", f"train.micro_batch={SEQUENCES // accumulation}"]
        calls.add_both((stage, accumulation), *options)
    for name, options in VARIANTS.items():
        calls.add_both((name,), *options)
    for name, options in (("plain", COMPILED[1:]), ("compiled", COMPILED), ("compiled_static", [*COMPILED, STATIC])):
        calls.add((name,), "make_steps", *options, steps=2)
    for stage in STAGES:
        calls.add(("disturbed", stage), "disturb_static_steps", f"train.zero_stage={stage}", STATIC)
    return calls.run(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(tiny_corpus, directory):
    """Everything on two processes."""
    calls = Calls(tiny_corpus, directory)
    for stage, accumulation in MATRIX:
        options = [f"train.zero_stage={stage}", f"train.micro_batch={SEQUENCES // accumulation // 2}"]
        calls.add_both((stage, accumulation), *options)
    for stage in (0, 1):
        calls.add_both(("dropout", stage), f"train.zero_stage={stage}", dropout=True)
        optimizer = ["optim.kind=spectral"] * (stage == 0)
        runs = [
            adapting(tiny_corpus, directory, f"{kind}{stage}", f"train.zero_stage={stage}", *optimizer, *options)
            for kind, options in (("eager", []), ("static", [STATIC]))
        ]
        calls.add_call(("ranks", stage), "train_static", runs=runs)
    cpu = adapting(tiny_corpus, directory, "on_cpu", "train.zero_stage=0", "optim.kind=spectral", STATIC)
    calls.add_call(("said", "cpu"), "said", runs=[cpu], pretends_gpu=False)
    third = tiny_run(tiny_corpus, directory, "third", "train.zero_stage=3", "train.steps=2")
    both = [*third, "run.name=eager3"], [*third, STATIC, "train.compile=true"]
    calls.add_call(("said", 3), "said", runs=both, pretends_gpu=True)
    return calls.run(2)


@pytest.mark.parametrize(("stage", "accumulation"), MATRIX)
@pytest.mark.parametrize("count", ["one", "two"])
def test_the_static_step_is_the_eager_step(request, count, stage, accumulation):
    # Stage 2 reduces the gradients of every micro batch; the static step reduces once, like stage 1.
    eager = 1 if (count, stage, accumulation) == ("two", 2, 2) else stage
    results = request.getfixturevalue(count)
    assert results[stage, accumulation, "static"] == results[eager, accumulation, "eager"]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_the_same_too(one, name):
    assert one[name, "static"] == one[name, "eager"]
    assert one[name, "static"]["digest"] != one[0, 1, "static"]["digest"]


@pytest.mark.parametrize("stage", [0, 1])
def test_dropout_draws_the_same_numbers(two, stage):
    assert two["dropout", stage, "static"] == two["dropout", stage, "eager"]
    assert two["dropout", stage, "static"]["losses"] != two[stage, 1, "static"]["losses"]


def assert_same_run(directory, first, second, step=14):
    expected, found = saved_tensors(directory, first, step), saved_tensors(directory, second, step)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    logs = [[(r["loss"], r["grad_norm"], r["lr"]) for r in metrics(directory, name)] for name in (first, second)]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("stage", [0, 1])
def test_ranks_adapt_alike(two, directory, stage):
    """Pressure on gates, syncs that turn the gauge in place, and cuts that rebuild the engine."""
    assert_same_run(directory, f"eager{stage}", f"static{stage}")
    records = syncs(directory, f"static{stage}")
    assert records == syncs(directory, f"eager{stage}")
    assert sum(record["cut"] > 0 for record in records[1:]) >= 2


def test_a_resumed_static_run_is_the_uninterrupted_one(two, directory, tiny_corpus):
    names = [cut_back(directory, f"static{stage}", f"again{stage}", 9) for stage in (0, 1)]
    runs = [
        adapting(tiny_corpus, directory, names[0], "train.zero_stage=0", "optim.kind=spectral", STATIC),
        adapting(tiny_corpus, directory, names[1], "train.zero_stage=1", STATIC),
    ]
    run_processes(2, "train_static", runs=runs)
    for stage in (0, 1):
        assert_same_run(directory, f"eager{stage}", f"again{stage}")


@pytest.mark.parametrize("stage", STAGES)
def test_a_loss_that_is_not_finite_changes_nothing_and_stops_nothing(one, stage):
    report = one["disturbed", stage]
    assert not any(map(math.isfinite, map(float, report["bad"])))
    assert report["untouched"]
    assert report["goes_on"]


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_graph_cannot_take_is_named(one, stage):
    shape, dtype, moved, resized = one["disturbed", stage]["errors"]
    assert shape.startswith("inputs_BS is (8, 15) torch.int64 and the captured step takes (8, 16) torch.int64; ")
    assert dtype.startswith("targets_BS is (8, 16) torch.int32 and the captured step takes (8, 16) torch.int64; ")
    name = "model.model.embed_tokens.gate_1"
    if stage == 0:
        assert moved == "no error"
        assert one["disturbed", stage]["goes_on_where_it_moved"]
    else:
        assert moved.startswith(f"{name} has moved in memory since the step was captured, ")
        assert "which captures again" in moved
    assert resized.startswith(f"{name} is (3,) torch.float32 and was (4,) torch.float32 when the step was captured; ")


@pytest.mark.parametrize("stage", STAGES)
def test_no_autograd_node_is_kept_from_before_the_capture(one, stage):
    """A capture would have to wait for the stream to which it belongs, which ends the capture."""
    assert one["disturbed", stage]["kept_nodes"] == 0


def test_a_setting_without_effect_is_said_once_and_the_run_is_the_eager_one(two, directory):
    """Although the engine is built more than once."""
    assert two["said", "cpu"] == [
        "train.cuda_graphs = true has no effect: the run has no CUDA device; start it on one."
    ]
    assert_same_run(directory, "eager0", "on_cpu")
    assert [line.split(" stage 3 ")[0] for line in two["said", 3]] == [
        "train.compile = true has no effect: ZeRO",
        "train.cuda_graphs = true has no effect: ZeRO",
    ]
    assert_same_run(directory, "eager3", "third", step=2)


def test_compiled_steps_are_the_plain_ones_to_rounding(one):
    assert one["compiled",]["losses"] == pytest.approx(one["plain",]["losses"], rel=1e-5)
    assert one["compiled",]["norms"] == pytest.approx(one["plain",]["norms"], rel=1e-4)
    assert one["compiled_static",] == one["compiled",]
