"""ZeRO stages 0 to 3 on two processes are the same training as one process."""

import pytest
import torch
from forked import run_processes
from support import losses, metrics, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """The same eight steps on one process, on two at each stage, in micro batches, dense, tied, in bf16 and in fp8."""
    directory = tmp_path_factory.mktemp("parity")

    def run(name, *overrides):
        return tiny_run(tiny_corpus, directory, name, *overrides)

    gated = "model.gated_attention=true"
    two_blocks = "model.layers=2"  # the weights of stage 3 are gathered block by block
    variants = {
        "accumulated": ["train.micro_batch=2", "train.zero_stage=2", two_blocks],
        "tied": ["model.tie_embeddings=true", "model.bigram_rows=90", gated, "train.zero_stage=3"],
        "dense": ["model.format=dense", "train.zero_stage=1"],
        "unclipped": ["train.grad_clip=0", "train.zero_stage=0"],
    }
    single = [run("one", "train.zero_stage=0", two_blocks)]
    single += [run("long", "train.steps=60", "optim.lr=0.02")]
    single += [run(f"one_{name}", *options, "train.zero_stage=0") for name, options in variants.items()]
    double = [run(f"stage{stage}", f"train.zero_stage={stage}", two_blocks) for stage in STAGES]
    bf16 = ["train.precision=bf16", two_blocks]
    double += [run(f"bf16_{stage}", f"train.zero_stage={stage}", *bf16) for stage in STAGES]
    fp8 = ["train.precision=fp8", "model.format=dense", two_blocks]
    double += [run(f"fp8_{stage}", f"train.zero_stage={stage}", *fp8) for stage in STAGES]
    double += [run("like_fp8", *fp8, "train.precision=bf16", "train.zero_stage=0")]
    double += [run(name, *options) for name, options in variants.items()]
    run_processes(1, "train_runs", runs=single)
    run_processes(2, "train_runs", runs=double)
    return directory


@pytest.mark.parametrize("stage", STAGES)
def test_zero_stage_has_the_loss_curve_of_one_process(runs, stage):
    assert losses(runs, f"stage{stage}") == pytest.approx(losses(runs, "one"), rel=2e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_zero_stage_has_the_weights_and_moments_of_one_process(runs, stage):
    expected, found = saved_tensors(runs, "one", 8), saved_tensors(runs, f"stage{stage}", 8)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_gradient_norm_is_that_of_one_process(runs, stage):
    norms = [[r["grad_norm"] for r in metrics(runs, name)] for name in ("one", f"stage{stage}")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.parametrize("name", ["accumulated", "tied", "dense", "unclipped"])
def test_variant_has_the_loss_curve_of_one_process(runs, name):
    assert losses(runs, name) == pytest.approx(losses(runs, f"one_{name}"), rel=2e-6)


def test_gradient_accumulation_changes_nothing(runs):
    assert losses(runs, "accumulated") == pytest.approx(losses(runs, "one"), rel=2e-6)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("precision", "wider"), [("bf16", "one"), ("fp8", "like_fp8")])
def test_a_precision_computes_in_it_at_all_stages_and_keeps_fp32_state(runs, precision, wider, stage):
    assert losses(runs, f"{precision}_{stage}") == pytest.approx(losses(runs, f"{precision}_0"), rel=2e-3)
    assert losses(runs, f"{precision}_{stage}") == pytest.approx(losses(runs, wider), rel=2e-2)
    assert losses(runs, f"{precision}_{stage}") != losses(runs, wider)
    assert {t.dtype for t in saved_tensors(runs, f"{precision}_{stage}", 8).values()} == {torch.float32}


def test_validation_loss_does_not_depend_on_the_number_of_processes(runs):
    values = [metrics(runs, name)[-1]["val_loss"] for name in ("one", "stage1")]
    assert values[1] == pytest.approx(values[0], rel=1e-5)


def test_training_learns(runs):
    assert losses(runs, "long")[-1] < losses(runs, "long")[0] - 0.3


def test_gate_drift_names_a_disturbed_process():
    assert run_processes(2, "disturbed_gate") == [0.25, 0.25]
