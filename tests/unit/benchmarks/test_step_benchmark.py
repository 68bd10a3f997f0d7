"""The step benchmark at tiny shapes.

Run as a script this file prints what a process of its own measures: engines need a process group and DeepSpeed, which
other tests shall not meet.
"""

import argparse
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from support import ROOT

from comera_dist.config.reader import read_config
from comera_dist.formats.dense import DensePlan

COLUMNS = [
    "case",
    "side",
    "parameters",
    "step ms: median (range)",
    "tokens/s",
    "times as fast as dense",
    "times as fast as the fastest dense",
    "peak memory MiB",
    "optimizer MiB",
    "gradient MiB",
    "TFLOP/s",
    "MFU",
]
SIDES = {
    "tiny-encoder": ["dense AdamW", "dense GaLore", "CoMERA's scheme", "ours"],
    "tiny-llama": [
        *["dense AdamW", "dense GaLore", "ours", "ours, tensor vocabulary"],
        *["dense, spectral steps", "block trains, spectral steps", "block trains of 8 blocks, spectral steps"],
    ],
}


def has_galore() -> bool:
    try:
        import galore_torch  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.fixture(scope="module")
def measured():
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, __file__], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _expected_sides(key):
    return [side for side in SIDES[key] if has_galore() or "GaLore" not in side]


@pytest.mark.parametrize("key", SIDES)
def test_every_side_trains(measured, key):
    losses = measured["losses"][key]
    assert list(losses) == _expected_sides(key)
    for first, *_, last in losses.values():
        assert last < first


@pytest.mark.parametrize("key", SIDES)
def test_every_side_has_a_row_with_all_columns(measured, key):
    rows = measured["rows"][key]
    assert [row["side"] for row in rows] == _expected_sides(key)
    assert all(list(row) == COLUMNS for row in rows)
    dense, ours = rows[0], rows[-1]
    assert dense["times as fast as dense"] == dense["times as fast as the fastest dense"] == "1"
    # fp32 gradients, and two moments of the same size beside a step count for each parameter.
    assert float(dense["gradient MiB"]) == round(4 * dense["parameters"] / 2**20, 1)
    assert measured["state_bytes"][key]["dense AdamW"] == pytest.approx(8 * dense["parameters"], rel=0.01)
    assert ours["parameters"] < dense["parameters"]


def test_galore_keeps_fewer_moments_and_its_projections(measured):
    pytest.importorskip("galore_torch", reason="galore-torch is not installed", exc_type=ImportError)
    width, hidden, layers, rank, vocabulary, bytes_ = 32, 64, 2, 8, 128, 4
    # Each matrix (m, n) is projected on its shorter side: moments of the longer, a basis of the shorter.
    square, wide = 2 * rank * width + rank * width, 2 * rank * hidden + rank * width
    projected = layers * (4 * square + 3 * wide)
    # Embedding, head and norms have two moments; torch's AdamW counts the steps of each in a number of its own.
    norms = 2 * layers + 1
    plain = 2 * (2 * vocabulary * width + norms * width) + 2 + norms
    assert measured["state_bytes"]["tiny-llama"]["dense GaLore"] == bytes_ * (plain + projected)


def test_the_bookkeeping_compares_steps_that_adapt_with_steps_that_do_not(measured):
    fixed, adapting = measured["bookkeeping"]
    assert fixed["times as long"] == "1"
    assert float(adapting["times as long"].split(" ")[0]) > 0
    assert fixed["parameters"] == adapting["parameters"] < measured["rows"]["tiny-llama"][0]["parameters"]
    assert measured["pressures"] == 2 + 2  # one a step of the side that adapts: two to warm up, two that count


def test_a_side_that_fails_is_named_and_the_others_are_measured(measured):
    assert measured["without_plain_sides"] == ["dense AdamW", "ours"]
    assert "tiny encoder, CoMERA's scheme: no memory left" in measured["failures"]
    assert len(measured["failures"]) == 1 + has_galore()


def test_nothing_needs_wandb_or_datasets(measured):
    assert measured["blocked"] == ["wandb", "datasets"]


def test_peak_memory_is_that_of_a_process_that_holds_the_side():
    from benchmarks import step

    assert step._peak_of("tiny-llama", "ours") > 100 << 20


def test_comeras_encoder_has_the_parameters_of_ours():
    from benchmarks.steps.cases import DENSE, OURS, QUICK, SCHEME, Side
    from benchmarks.steps.models import build
    from comera_dist.models.family import plan_model

    case = QUICK["tiny-encoder"]
    counts = {}
    for model in (DENSE, SCHEME, OURS):
        config = case.config(Side(model), "cpu")
        module = build(case, model, config, torch.device("cpu"))
        counts[model] = sum(p.numel() for p in module.parameters())
    layers = plan_model(config, case.facts).values()
    saved = sum(layer.dense_parameters - layer.parameters for layer in layers)
    assert counts[SCHEME] == counts[OURS] == counts[DENSE] - saved
    assert sum(not isinstance(layer, DensePlan) for layer in layers) == 1 + 6 * config.model.layers + 1


@pytest.mark.parametrize("key", ["llama-60m", "llama-130m", "llama-350m", "llama-1b"])
def test_block_trains_keep_just_under_half_of_the_dense_matrices(key):
    from benchmarks.steps.cases import BLOCKS, CASES, LARGE_BLOCKS, Side
    from comera_dist.models.family import plan_model

    case = CASES[key]
    for model in {BLOCKS, LARGE_BLOCKS} & case.models.keys():
        plan = plan_model(case.config(Side(model), "cuda"), case.facts)
        layers = [layer for name, layer in plan.items() if name.endswith("_proj")]
        share = sum(layer.parameters for layer in layers) / sum(layer.dense_parameters for layer in layers)
        assert 0.45 < share < 0.5
        assert model == BLOCKS or {layer.in_blocks[0] for layer in layers} == {8}


@pytest.mark.parametrize("key", SIDES)
def test_all_models_of_a_case_have_outputs_of_one_shape(key):
    from benchmarks.steps.cases import QUICK, Side
    from benchmarks.steps.models import batch_of, build

    case = QUICK[key]
    *inputs, _ = batch_of(case, 3)
    models = [build(case, model, case.config(Side(model), "cpu"), torch.device("cpu")) for model in case.models]
    shapes = {model(*inputs).shape for model in models}
    assert shapes == {(3, case.classes) if case.classes else (3, case.seq_len, case.vocabulary)}


def test_flops_of_a_product_that_is_added_in_another_dtype_are_counted():
    """As Liger's kernel makes them, on GPUs alone."""
    from benchmarks.steps.figures import NOT_COUNTED_BY_TORCH

    shapes = torch.Size([6, 8]), torch.Size([6, 5]), torch.Size([5, 8])
    count = NOT_COUNTED_BY_TORCH[torch.ops.aten.addmm]
    assert count(*shapes, torch.float32, out_shape=shapes[0]) == count(*shapes, out_shape=shapes[0]) == 2 * 6 * 5 * 8


def test_counted_flops_of_a_dense_decoder_are_those_counted_by_hand():
    from benchmarks.steps.cases import DENSE, QUICK, Side
    from benchmarks.steps.figures import counted_flops
    from benchmarks.steps.models import batch_of, build

    case = QUICK["tiny-llama"]
    config = case.config(Side(DENSE), "cpu")
    model = build(case, DENSE, config, torch.device("cpu"))
    batch = batch_of(case, 4)
    width, hidden, layers, length, tokens = 32, 64, 2, case.seq_len, 4 * case.seq_len
    products = layers * (4 * width * width + 3 * width * hidden) + width * case.vocabulary
    # Two products forward; four backward and the scores once more.
    attention = layers * (2 + 5) * 2 * tokens * length * width
    assert counted_flops(lambda: model(*batch).backward()) == 6 * tokens * products + attention


def test_ratios_are_taken_in_the_same_mode_and_against_the_fastest_dense():
    from benchmarks.roofline import Rates
    from benchmarks.steps.cases import DENSE, OURS, QUICK, Side
    from benchmarks.steps.figures import Result, rows_of

    times = {
        Side(DENSE): [40.0, 40.0],
        Side(OURS): [20.0, 10.0],
        Side(DENSE, mode="compiled"): [10.0, 10.0],
        Side(OURS, mode="compiled"): [5.0, 5.0],
    }
    results = [Result(side, 1, 64, own, 6_000_000, 2**20, 2**19) for side, own in times.items()]
    rows = rows_of(QUICK["tiny-llama"], "cpu", results, Rates(1.0, 1_200_000.0))
    assert [row["times as fast as dense"] for row in rows] == ["1", "3.00 (2.00–4.00)", "1", "2.00 (2.00–2.00)"]
    assert [row["times as fast as the fastest dense"] for row in rows] == [
        "0.25 (0.25–0.25)",
        "0.75 (0.50–1.00)",
        "1",
        "2.00 (2.00–2.00)",
    ]
    assert rows[3]["MFU"] == "100.0%"
    assert rows[2]["tokens/s"] == 6400
    assert (rows[0]["optimizer MiB"], rows[0]["gradient MiB"], rows[0]["peak memory MiB"]) == ("1.0", "0.5", "–")


def test_modes_are_those_that_a_device_has():
    from benchmarks.steps.cases import CASES, cases_for

    names = {side.name for side in CASES["llama-130m"].sides("cuda")}
    assert {"dense AdamW, graphed", "ours, tensor vocabulary, graphed", "ours, compiled+graphed"} <= names
    assert {side.mode for side in CASES["llama-130m"].sides("cpu")} == {"eager", "compiled"}
    assert {side.mode for side in CASES["six-encoder-1"].sides("cpu")} == {"eager"}
    assert set(CASES) - set(cases_for("cpu")) == {"six-encoder-128", "llama-350m", "llama-1b"}
    for device_type in ("cpu", "cuda"):
        for case in cases_for(device_type).values():
            for side in case.sides(device_type):
                config = case.config(side, device_type)
                assert config.train.cuda_graphs == ("graphed" in side.mode)
                assert config.train.compile == ("compiled" in side.mode)
                assert (config.train.precision == "fp8") == ("fp8" in side.mode)
                kind = "spectral" if "spectral" in side.name else "adamw"
                assert config.optim.kind == ("galore" if side.uses_galore else kind)
                assert config.train.zero_stage == 0
                assert config.global_batch == case.sequences[device_type]


@pytest.mark.parametrize(("name", "device_type"), [("llama-7b", "cpu"), ("bookkeeping", "cuda"), ("llama-1b", "cpu")])
def test_an_unknown_case_is_one_sentence(name, device_type):
    from benchmarks import step
    from comera_dist.errors import ConfigError

    with pytest.raises(
        ConfigError, match=rf"{name} is not a case on a {device_type} device; choose among six-encoder-1, "
    ):
        step.chosen_cases(argparse.Namespace(cases=[name], side=None, quick=False), device_type)


def test_only_the_named_sides_are_measured():
    from benchmarks import step

    chosen = argparse.Namespace(cases=["llama-130m"], side=["ours", "dense AdamW, compiled"], quick=False)
    cases, wants_bookkeeping = step.chosen_cases(chosen, "cpu")
    assert [side.name for side in cases["llama-130m"].sides("cpu")] == ["ours", "dense AdamW, compiled"]
    assert not wants_bookkeeping


def test_a_case_that_fails_in_its_turns_does_not_end_the_others(monkeypatch):
    from benchmarks import step

    def measure(case, processes, failures):
        if case.name == "first":
            raise torch.OutOfMemoryError("no memory left\nfor this")
        return ["results"]

    monkeypatch.setattr(step, "measure", measure)
    monkeypatch.setattr(step, "add_peaks", lambda measured: None)
    cases, measured, failures = {name: SimpleNamespace(name=name) for name in ("first", "second")}, {}, []
    step.run(cases, SimpleNamespace(device=torch.device("cpu")), measured, failures)
    assert measured == {"second": ["results"]}
    assert failures == ["first: no memory left"]


def test_sides_of_a_huge_case_share_the_device_mode_by_mode():
    from benchmarks.steps.cases import CASES

    huge, usual = (CASES[key].sides_in_turn("cuda") for key in ("llama-1b", "llama-350m"))
    assert [{side.mode for side in group} for group in huge] == [{"eager"}, {"graphed"}, {"fp8+graphed"}]
    assert [side for group in huge for side in group] == CASES["llama-1b"].sides("cuda")
    assert usual == [CASES["llama-350m"].sides("cuda")]


def test_the_triton_side_of_a_layer_is_the_layer(monkeypatch):
    from benchmarks import layers
    from benchmarks.kernels.bottleneck import bottleneck_product
    from comera_dist.formats.tensor_train.linear import TTLinear
    from comera_dist.formats.tensor_train.shapes import plan_tt

    kernels = SimpleNamespace(fused_bottleneck_product=bottleneck_product, MAX_RANK=256)
    monkeypatch.setitem(sys.modules, "benchmarks.kernels.bottleneck_kernel", kernels)
    layer = TTLinear(plan_tt(48, 64, 3, 5)).double()
    for gate in layer.gates:
        gate.data.uniform_(0.5, 1.5)
    side = layers.TritonLinear(layer).double()
    x = torch.randn(7, 48, dtype=torch.float64)
    torch.testing.assert_close(side(x), layer(x))
    expected, actual = (torch.autograd.grad(m(x).square().sum(), list(layer.parameters())) for m in (layer, side))
    torch.testing.assert_close(actual, expected)


def _measure_all() -> dict:
    from benchmarks import (
        embedding,  # noqa: F401  (what GPU machines run is imported without what they lack)
        layers,  # noqa: F401
        scaling,  # noqa: F401
    )
    from benchmarks.roofline import Rates
    from benchmarks.steps.bookkeeping import bookkeeping_rows
    from benchmarks.steps.cases import QUICK
    from benchmarks.steps.figures import rows_of, state_bytes
    from benchmarks.steps.measuring import measure
    from benchmarks.steps.sides import PlainSide, open_side
    from comera_dist.ranks.objective import Objective
    from comera_dist.runtime.processes import start_processes

    processes = start_processes()
    found = {"losses": {}, "rows": {}, "state_bytes": {}}
    failures = []
    for key, case in QUICK.items():
        found["rows"][key] = rows_of(case, "cpu", measure(case, processes, failures), Rates(1.0, 1.0))
        measured = {row["side"] for row in found["rows"][key]}
        sides = {side.name: open_side(case, side, processes) for side in case.sides("cpu") if side.name in measured}
        found["losses"][key] = {name: [subject.step() for _ in range(4)] for name, subject in sides.items()}
        found["state_bytes"][key] = {name: state_bytes(subject.optimizer) for name, subject in sides.items()}
    assert not failures, failures

    def fail(side):
        raise RuntimeError("no memory left\nfor this")

    PlainSide.step = fail
    results = measure(QUICK["tiny-encoder"], processes, failures)
    found["without_plain_sides"] = [result.side.name for result in results]
    found["failures"] = failures
    found["pressures"], pressure = 0, Objective.pressure

    def counting(*arguments, **named):
        found["pressures"] += 1
        return pressure(*arguments, **named)

    Objective.pressure = counting
    found["bookkeeping"] = bookkeeping_rows(processes, QUICK["tiny-llama"], repeats=2)
    return found


def test_every_side_of_the_quickstart_starts_with_finite_numbers():
    from benchmarks.steps.cases import CASES
    from benchmarks.steps.models import batch_of, build

    case = CASES["quickstart"]
    batch = batch_of(case, 1)
    for name, overrides in case.models.items():
        config = read_config(case.base, [*case.overrides, *overrides, "data.seq_len=128", "train.steps=1"])
        model = build(case, name, config, torch.device("cpu"))
        assert model(*batch).isfinite(), name


def test_a_side_that_makes_no_update_is_an_error():
    from benchmarks.steps.measuring import _first_step

    idle = SimpleNamespace(step=lambda: None, optimizer=SimpleNamespace(state={}))
    with pytest.raises(RuntimeError, match="no update was made, because the loss is not finite"):
        _first_step(SimpleNamespace(model="idle"), idle, {})


if __name__ == "__main__":
    blocked = ["wandb", "datasets"]
    sys.modules |= dict.fromkeys(blocked)  # whoever imports them gets an ImportError
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(json.dumps(_measure_all() | {"blocked": [name for name in blocked if sys.modules[name] is None]}))
