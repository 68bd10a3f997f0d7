"""CUDA graphs replay what runs without them: bit for bit, with deterministic algorithms and the same kernels.

At stages 1 and 2 the eager side is the step through DeepSpeed. At stage 0 it is the same step uncaptured, because
AdamW that can be captured rounds otherwise; the step through DeepSpeed is near.
"""

import pytest
from on_gpu import MARKS, STAGES, STATIC, on_gpu
from support import tiny_run

pytestmark = [*MARKS, pytest.mark.timeout(600)]
VARIANTS = {
    "plain": [],
    "accumulated": ["train.micro_batch=4"],
    "bf16": ["train.precision=bf16"],
    "fp8": ["train.precision=fp8", "model.format=dense"],
    "clipped": ["train.grad_clip=0.1"],
    "dense": ["model.format=dense"],
    "tied": ["model.tie_embeddings=true", "model.bigram_rows=90", "model.gated_attention=true"],
    "spectral": ["optim.kind=spectral"],
    "warmed_up": ["schedule.warmup_steps=2"],  # no replay may keep the learning rate of the first step
}
CASES = [(stage, name) for stage in STAGES for name in VARIANTS]


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
