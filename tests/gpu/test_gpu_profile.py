"""A trace on a GPU has its kernels, and a snapshot of the allocations beside it."""

import json
import pickle

import pytest
import torch

from comera_dist.run.profiling import StepProfile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels run on a CUDA device, and there is none"),
]


def test_kernels_and_allocations_of_a_step_are_written(tmp_path):
    traced = StepProfile(2, 2, tmp_path)
    for step in (1, 2, 3):
        with traced.around(step):
            x = torch.randn(64, 64, device="cuda")
            (x @ x).sum().item()
    events = json.loads((tmp_path / "steps_2-2.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert {event["name"] for event in events} & {"step 1", "step 2", "step 3"} == {"step 2"}
    snapshot = pickle.loads((tmp_path / "steps_2-2.memory.pickle").read_bytes())
    assert any(entry["action"] == "alloc" for entries in snapshot["device_traces"] for entry in entries)
