"""CUDA graphs replay what runs without them: bit for bit, with deterministic algorithms and the same kernels.

At stages 1 and 2 the eager side is the step through DeepSpeed. At stage 0 it is the same step uncaptured, because
AdamW that can be captured rounds otherwise; the step through DeepSpeed is near.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from support import ROOT, cut_back, environment, losses, saved_tensors, tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device; there is none"),
    pytest.mark.timeout(600),
]
STATIC = "train.cuda_graphs=true"
STAGES = (0, 1, 2)
VARIANTS = {
    "plain": [],
    "accumulated": ["train.micro_batch=4"],
    "bf16": ["train.precision=bf16"],
    "fp8": ["train.precision=fp8", "model.format=dense"],
    "clipped": ["train.grad_clip=0.1"],
    "dense": ["model.format=dense"],
    "tied": ["model.tie_embeddings=true"],
    "spectral": ["optim.kind=spectral"],
    "warmed_up": ["schedule.warmup_steps=2"],  # no replay may keep the learning rate of the first step
}
# Cuts at steps 6 and 10 of 14.
ADAPTING = [
    "ranks.adapt=true",
    "ranks.layers=['*_proj']",
    "ranks.sync_every=2",
    "ranks.policy.patience=1",
    "ranks.target_compression=1.6",
    "tensor.rank=6",
    "optim.lr=0.01",
    "train.steps=14",
    "checkpoint.every=4",
    "checkpoint.keep=99",
]
CASES = [(stage, name) for stage in STAGES for name in VARIANTS]


def on_gpu(scenario, **arguments):
    """What a scenario of tests/distributed returns in a process of its own on the first GPU."""
    extra = {
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "DS_ACCELERATOR": "cuda",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS is not deterministic on several streams
    }
    command = [sys.executable, str(ROOT / "tests/distributed/worker.py"), scenario, json.dumps(arguments)]
    done = subprocess.run(command, env=environment(**extra), capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, f"{scenario} failed:\n{done.stdout}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def steps(tiny_corpus, directory):
    """Steps of each case: through DeepSpeed, uncaptured and captured."""
    kinds = {"eager": ([], True), "uncaptured": ([STATIC], False), "captured": ([STATIC], True)}
    calls, keys = [], []
    for stage, name in [*CASES, (0, "dropout"), (1, "dropout")]:
        for kind, (options, captures) in kinds.items():
            overrides = [*VARIANTS.get(name, []), f"train.zero_stage={stage}", "optim.lr=0.01", *options]
            run = tiny_run(tiny_corpus, directory, f"{name}_{stage}_{kind}", *overrides)
            arguments = {"overrides": run, "steps": 5, "captures": captures, "dropout": name == "dropout"}
            calls.append(["make_steps", arguments])
            keys.append((stage, name, kind))
    return dict(zip(keys, on_gpu("several", calls=calls), strict=True))


def without_graphs(result):
    return {key: value for key, value in result.items() if key != "graphs"}


@pytest.mark.parametrize(("stage", "name"), [*CASES, (0, "dropout"), (1, "dropout")])
def test_captured_steps_are_the_uncaptured_ones(steps, stage, name):
    captured, uncaptured = steps[stage, name, "captured"], steps[stage, name, "uncaptured"]
    assert (captured["graphs"], uncaptured["graphs"]) == (3 if stage == 0 else 1, 0)
    assert without_graphs(captured) == without_graphs(uncaptured)


@pytest.mark.parametrize(("stage", "name"), [case for case in CASES if case[0] > 0] + [(1, "dropout")])
def test_captured_gradients_train_like_deepspeed(steps, stage, name):
    captured, eager = steps[stage, name, "captured"], steps[stage, name, "eager"]
    assert eager["graphs"] == 0
    assert without_graphs(captured) == without_graphs(eager)


@pytest.mark.parametrize("name", [*VARIANTS, "dropout"])
def test_the_whole_captured_step_is_near_deepspeeds(steps, name):
    """The first loss and norm come before any update: they are the same."""
    captured, eager = steps[0, name, "captured"], steps[0, name, "eager"]
    assert (captured["losses"][0], captured["norms"][0]) == (eager["losses"][0], eager["norms"][0])
    tolerance = 2e-3 if name in ("bf16", "fp8") else 1e-5
    assert captured["losses"] == pytest.approx(eager["losses"], rel=tolerance)
    if name == "dropout":
        assert captured["losses"] != steps[0, "plain", "captured"]["losses"]


def syncs(directory, name):
    records = [json.loads(line) for line in (directory / name / "ranks.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "rebuild_seconds"} for record in records]


@pytest.fixture(scope="module")
def adapted(tiny_corpus, directory):
    """Runs whose ranks are cut twice: captured, their reference, and captured again after a resume at step 8."""

    def run(name, stage, *options):
        return tiny_run(tiny_corpus, directory, name, *ADAPTING, f"train.zero_stage={stage}", *options)

    calls = []
    for stage in (0, 1):
        calls.append(["train_static", {"runs": [run(f"captured{stage}", stage, STATIC)]}])
        reference = [STATIC] if stage == 0 else []
        calls.append(["train_static", {"runs": [run(f"reference{stage}", stage, *reference)], "captures": False}])
    on_gpu("several", calls=calls)
    again = [run(cut_back(directory, f"captured{s}", f"again{s}", 8), s, STATIC) for s in (0, 1)]
    on_gpu("train_static", runs=again)
    return directory


@pytest.mark.parametrize("name", ["captured", "again"])
@pytest.mark.parametrize("stage", [0, 1])
def test_graphs_follow_cuts_of_ranks_and_resumes(adapted, stage, name):
    found, wanted = f"{name}{stage}", f"reference{stage}"
    assert syncs(adapted, found) == syncs(adapted, wanted)
    assert sum(record["cut"] > 0 for record in syncs(adapted, found)[1:]) >= 2
    assert losses(adapted, found) == losses(adapted, wanted)
    expected, tensors = saved_tensors(adapted, wanted, 14), saved_tensors(adapted, found, 14)
    assert expected.keys() == tensors.keys()
    assert all(torch.equal(tensors[key], expected[key]) for key in expected)


@pytest.fixture(scope="module")
def disturbed(tiny_corpus, directory):
    runs = [tiny_run(tiny_corpus, directory, f"disturbed{s}", f"train.zero_stage={s}", STATIC) for s in STAGES]
    return on_gpu("several", calls=[["disturb_static_steps", {"overrides": run}] for run in runs])


@pytest.mark.parametrize("stage", STAGES)
def test_a_disturbed_graph_harms_nothing(disturbed, stage):
    """A loss that is not finite, batches of another kind, and parameters that move or change their shape."""
    report = disturbed[stage]
    assert report["bad"] == ["nan", "nan"]
    assert report["untouched"]
    assert report["goes_on"]
    assert report["kept_nodes"] == 0
    shape, dtype, moved, resized = report["errors"]
    assert shape.startswith("inputs_BS is (8, 15) torch.int64")
    assert dtype.startswith("targets_BS is (8, 16) torch.int32")
    assert resized.startswith("model.model.embed_tokens.gate_1 is (3,)")
    if stage == 0:
        assert moved == "no error"
        assert report["goes_on_where_it_moved"]
    else:
        assert "has moved in memory since the step was captured" in moved


@pytest.mark.parametrize("stage", STAGES)
def test_a_compiled_model_is_captured_too(tiny_corpus, directory, stage):
    options = {"plain": [], "compiled": ["train.compile=true"], "captured": ["train.compile=true", STATIC]}
    calls = [
        [
            "make_steps",
            {
                "overrides": tiny_run(
                    tiny_corpus, directory, f"with_{name}{stage}", f"train.zero_stage={stage}", *more
                ),
                "backend": "inductor",
            },
        ]
        for name, more in options.items()
    ]
    plain, compiled, captured = on_gpu("several", calls=calls)
    assert [result["graphs"] for result in (plain, compiled, captured)] == [0, 0, 3 if stage == 0 else 1]
    for result in (compiled, captured):
        assert result["losses"] == pytest.approx(plain["losses"], rel=1e-4)
        assert result["norms"] == pytest.approx(plain["norms"], rel=1e-3)
