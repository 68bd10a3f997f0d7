"""CUDA graphs whose inputs or parameters are not as they were when they were captured."""

import math

import pytest
from on_gpu import MARKS, STAGES, STATIC, on_gpu
from support import tiny_run

pytestmark = [*MARKS, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def disturbed(tiny_corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("disturbed")
    runs = [tiny_run(tiny_corpus, directory, f"disturbed{s}", f"train.zero_stage={s}", STATIC) for s in STAGES]
    return on_gpu("several", calls=[["disturb_static_steps", {"overrides": run}] for run in runs])


@pytest.mark.parametrize("stage", STAGES)
def test_a_disturbed_graph_harms_nothing(disturbed, stage):
    """A loss that is not finite, batches of another kind, and parameters that move or change their shape."""
    report = disturbed[stage]
    assert not any(math.isfinite(float(number)) for number in report["bad"])
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
