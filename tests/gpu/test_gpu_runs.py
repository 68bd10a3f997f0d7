"""Whole runs on a GPU of parts whose tests on CPUs cannot see which device a tensor is on."""

import json

import pytest
from on_gpu import ADAPTING, MARKS, on_gpu
from support import WORKLOADS, make_clicks, tiny_run

pytestmark = [*MARKS, pytest.mark.timeout(300)]
BLOCKS = "model.format={attention: block_train, mlp: block_train, embedding: low_rank, head: low_rank}"
LOW_RANK = "model.format={attention: low_rank, mlp: low_rank, embedding: dense, head: dense}"
RANKS = [*ADAPTING, "tensor.low_rank.rank=6", "tensor.block_train.rank=4"]
RUNS = {
    "trains": RANKS,
    "blocks": [*RANKS, BLOCKS, "optim.kind=spectral"],
    "blocks_that_grow": [*RANKS, BLOCKS, "optim.kind=spectral", "ranks.policy.grow=1"],
    "low_rank": [*RANKS, LOW_RANK],
}


@pytest.mark.parametrize("stage", [1, 3])
def test_ranks_of_all_formats_are_cut(tiny_corpus, tmp_path, stage):
    runs = [tiny_run(tiny_corpus, tmp_path, name, *run, f"train.zero_stage={stage}") for name, run in RUNS.items()]
    on_gpu("train_runs", runs=runs)
    for name in RUNS:
        lines = (tmp_path / name / "ranks.jsonl").read_text().splitlines()
        assert sum(json.loads(line)["cut"] for line in lines[1:]) > 0, name


def test_a_layer_with_one_output_multiplies_in_fp8(tmp_path):
    place = [f"data.corpus={make_clicks(tmp_path / 'clicks')}", f"run.directory={tmp_path}", "run.name=clicks"]
    assert on_gpu("train_runs", runs=[[*place, *WORKLOADS["dlrm"], "train.precision=fp8"]])
