"""A run with recomputed blocks is the same run bit for bit, at every ZeRO stage and with adapting ranks."""

import pytest
import torch
from forked import run_processes
from support import WORKLOADS, make_pairs, saved_tensors, tiny_run
from test_rank_adaptation import adapting, syncs

pytestmark = pytest.mark.distributed
KEY = "train.activation_checkpointing"
# Without the threshold, ZeRO would leave parameters as small as these whole on every process.
STAGES = {
    **{stage: [f"train.zero_stage={stage}"] for stage in (0, 1, 2)},
    3: ["train.zero_stage=3", "deepspeed.zero_optimization={stage3_param_persistence_threshold: 0}"],
}
VARIANTS = {
    "plain": [],
    "accumulated": ["train.micro_batch=2"],
    "bf16": ["train.precision=bf16"],
    "block_train": ["model.format={rest: block_train}"],
    "dropout": [*WORKLOADS["masked_lm"], "model.dropout=0.2"],
}
# Stages 0 and 2 differ from 1 after the backward pass only.
TRIED = {0: ("bf16",), 1: ("plain", "block_train", "dropout"), 2: ("accumulated",), 3: ("accumulated", "dropout")}
# Compilers take longest over layers of formats; tests/unit/runtime/test_graphs.py compiles those of several formats.
COMPILED = ["train.compile=true", "model.format={rest: dense, mlp: tensor}", "train.zero_stage=0"]


def modes(stage):
    """Selective recomputation is refused at stage 3."""
    return ("none", "block", "selective")[: 2 if stage == 3 else 3]


MATRIX = [(stage, variant, mode) for stage in STAGES for variant in TRIED[stage] for mode in modes(stage)[1:]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("recomputed")


@pytest.fixture(scope="module")
def results(tiny_corpus, directory):
    """What `make_steps` returns, or None of whole runs, by stage, variant and mode."""
    pairs, calls = make_pairs(directory / "pairs"), {}
    for stage, options in STAGES.items():
        for mode in modes(stage):
            for variant in TRIED[stage]:
                name, keys = f"{variant}{stage}{mode}", [*VARIANTS[variant], *options, f"{KEY}={mode}"]
                run = tiny_run(tiny_corpus, directory, name, "optim.lr=0.01", *keys)
                if variant == "dropout":
                    run = [f"data.corpus={pairs}", f"run.directory={directory}", f"run.name={name}", *keys]
                calls[stage, variant, mode] = ["make_steps", {"overrides": run}]
    for mode in modes(1):
        runs = [adapting(tiny_corpus, directory, f"ranks_{mode}", "train.zero_stage=1", f"{KEY}={mode}")]
        calls[1, "ranks", mode] = ["train_runs", {"runs": runs}]
    for name, keys in (("eager", COMPILED[1:]), ("compiled", [*COMPILED, f"{KEY}=block"])):
        run = tiny_run(tiny_corpus, directory, name, *keys)
        calls[name] = ["make_steps", {"overrides": run, "steps": 2}]
    calls["own"] = ["said_of_own_model", {"directory": str(directory)}]
    found = run_processes(2, "several", timeout=500, calls=list(calls.values()))[0]
    return dict(zip(calls, found, strict=True))


@pytest.mark.parametrize(("stage", "variant", "mode"), MATRIX)
def test_steps_are_the_same_bits(results, stage, variant, mode):
    assert results[stage, variant, mode] == results[stage, variant, "none"]


@pytest.mark.parametrize("mode", ["block", "selective"])
def test_ranks_adapt_alike(results, directory, mode):
    """Cuts rebuild the model, whose blocks are recomputed again."""
    expected, found = (saved_tensors(directory, f"ranks_{name}", 14) for name in ("none", mode))
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert syncs(directory, f"ranks_{mode}") == syncs(directory, "ranks_none")
    assert any(record["cut"] > 0 for record in syncs(directory, "ranks_none")[1:])


def test_a_compiled_model_recomputes(results):
    for figure, rounding in (("losses", 1e-5), ("norms", 1e-4)):
        assert results["compiled"][figure] == pytest.approx(results["eager"][figure], rel=rounding)


def test_a_model_of_the_callers_says_that_it_is_kept(results):
    assert results["own"] == [
        "train.activation_checkpointing = block has no effect: the model that was handed in has no CheckpointedBlock; "
        "derive its blocks from it.",
        "train.precision = fp8 is bf16 here: the model that was handed in has no layer of a format; make its layers "
        "with comera_dist.tensorize.",
    ]
