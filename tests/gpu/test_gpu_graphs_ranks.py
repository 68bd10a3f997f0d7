"""CUDA graphs of models whose ranks are cut replay what runs without them."""

import json

import pytest
import torch
from on_gpu import ADAPTING, MARKS, STATIC, on_gpu
from support import cut_back, losses, saved_tensors, tiny_run

pytestmark = [*MARKS, pytest.mark.timeout(600)]
SAVING = ["checkpoint.every=4", "checkpoint.keep=99"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


def syncs(directory, name):
    records = [json.loads(line) for line in (directory / name / "ranks.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "rebuild_seconds"} for record in records]


@pytest.fixture(scope="module")
def adapted(tiny_corpus, directory):
    """Runs whose ranks are cut twice: captured, their reference, and captured again after a resume at step 8."""

    def run(name, stage, *options):
        return tiny_run(tiny_corpus, directory, name, *ADAPTING, *SAVING, f"train.zero_stage={stage}", *options)

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
