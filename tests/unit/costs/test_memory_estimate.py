"""Peaks of a process at each ZeRO stage, and the command that prints them."""

import json
import sys

import pytest
from support import FACTS, TINY, VOCAB, WORKLOADS

from comera_dist.commands.estimate import main
from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.memory import estimate_memory
from comera_dist.models.family import plan_model

KEY = "train.activation_checkpointing"


def memory_of(base, *overrides, processes=1):
    config = read_config(None, [*base, *overrides])
    plan = plan_model(config, FACTS)
    figures = estimate(config, plan, processes, config.tokens_per_forward(processes))
    return figures, estimate_memory(config, plan, figures, processes)


# Copies of the parameters at the update, the two moments included: whole, and shared.
@pytest.mark.parametrize(("stage", "whole", "shared"), [(0, 5, 0), (1, 1, 7), (2, 1, 7), (3, 1, 8)])
@pytest.mark.parametrize("processes", [1, 4])
def test_the_update_holds_copies_of_the_parameters(stage, whole, shared, processes):
    figures, memory = memory_of(TINY, f"train.zero_stage={stage}", processes=processes)
    assert memory.update_peak == pytest.approx(4 * figures.params * (whole + shared / processes), abs=4)


# Bytes of living tensors in a step of DeepSpeed with next to no activations, in sizes of the parameters: stage,
# processes, numbers of a bucket, and what was counted. At stage 3 small parameters are shared too.
COUNTED = [(0, 1, None, 5.0), (1, 1, None, 9.0 - 1), (1, 2, None, 4.5), (1, 4, None, 3.75), (2, 4, None, 3.75)]
COUNTED += [(1, 2, 400_000, 4.5), (1, 4, 400_000, 3.02), (2, 4, 400_000, 2.77)]
COUNTED += [(3, 2, None, 5.56), (3, 4, None, 4.30), (3, 2, 200_000, 4.61), (3, 2, 400_000, 4.67), (3, 4, 400_000, 3.42)]
DENSE = ["model.format=dense", "model.d_model=256", "model.heads=4", "model.d_ff=704", "model.layers=4"]


@pytest.mark.parametrize(("stage", "processes", "bucket", "copies"), COUNTED)
def test_peaks_are_those_that_were_counted(stage, processes, bucket, copies):
    keys = [f"deepspeed.zero_optimization.reduce_bucket_size={bucket}"] if bucket else []
    keys += ["deepspeed.zero_optimization.stage3_param_persistence_threshold=0"] if stage == 3 else []
    batch = [f"train.zero_stage={stage}", "data.seq_len=8", f"train.batch_tokens={8 * processes}"]
    figures, memory = memory_of([*TINY, *DENSE], *batch, *keys, processes=processes)
    assert memory.peak / (4 * figures.params) == pytest.approx(copies, rel=0.04)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("processes", [1, 4])
def test_whole_matrices_that_are_dealt_out_take_the_place_of_temporary_tensors(stage, processes):
    """Weights and gradients are sent and arrive. benchmarks/memory.py measures it."""
    peaks = {}
    for kind in ("adamw", "spectral"):
        keys = [f"optim.kind={kind}", f"train.zero_stage={stage}", "model.layers=6"]
        figures, memory = memory_of([*TINY, *DENSE], *keys, processes=processes)
        peaks[kind] = memory.update_peak - figures.state_bytes_per_process
    dealt, whole = 6 * (4 * 256 * 256 + 3 * 256 * 704), figures.params
    expected = 4 * (max(2 * whole, 4 * dealt) - 2 * whole) / processes
    assert expected > whole / processes
    assert peaks["spectral"] - peaks["adamw"] == pytest.approx(expected, abs=8)


def test_the_backward_pass_holds_moments_and_activations():
    figures, memory = memory_of(TINY, "train.zero_stage=0", "data.seq_len=64", "train.batch_tokens=1024")
    assert memory.backward_peak > 4 * 3 * figures.params + memory.activations
    assert memory.peak == memory.backward_peak > memory.update_peak


def test_recomputation_saves_memory():
    shape = ["data.seq_len=64", "train.batch_tokens=1024", "model.format=dense", "model.layers=4"]
    none, selective, block = (memory_of(TINY, *shape, f"{KEY}={mode}")[1] for mode in ("none", "selective", "block"))
    assert none.activations > selective.activations > block.activations
    assert none.peak > selective.peak > block.peak


def test_a_kind_without_a_blank_batch_has_no_estimate():
    assert memory_of(WORKLOADS["dlrm"])[1] is None


@pytest.mark.parametrize("kind", ["decoder", "dlrm"])
def test_the_command_prints_it(kind, monkeypatch, capsys, tmp_path):
    base, config = (TINY, read_config(None, TINY)) if kind == "decoder" else (WORKLOADS[kind], None)
    known = ["model.table_rows=[60,7,48]", "model.dense_features=2"] if kind == "dlrm" else []
    (tmp_path / "empty.yaml").write_text("{}")
    command = ["estimate", "--config", str(tmp_path / "empty.yaml"), "--vocab-size", str(VOCAB), *base, *known]
    monkeypatch.setattr(sys, "argv", [*command, "--processes", "1", "--json"])
    assert main() == 0
    found = json.loads(capsys.readouterr().out)["memory"]
    assert found == (None if config is None else memory_of(base)[1].to_json())
    monkeypatch.setattr(sys, "argv", command)
    assert main() == 0
    assert ("peak of the update" in capsys.readouterr().out) == (kind == "decoder")


def test_the_command_names_keys_without_effect(monkeypatch, capsys, tmp_path):
    (tmp_path / "empty.yaml").write_text("{}")
    command = ["estimate", "--config", str(tmp_path / "empty.yaml"), "--vocab-size", str(VOCAB), *TINY]
    monkeypatch.setattr(sys, "argv", [*command, "tensor.rank=4096", "tensor.block_train.rank=2"])
    assert main() == 0
    *_, idle, large = capsys.readouterr().out.splitlines()
    assert idle == "tensor.block_train.rank = 2 has no effect: the matrices of the model are the same without."
    assert large.startswith("tensor.rank = 4096 is more than any matrix can have")
