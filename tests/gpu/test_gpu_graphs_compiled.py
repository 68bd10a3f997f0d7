"""CUDA graphs of models that torch has compiled."""

import pytest
from on_gpu import MARKS, STAGES, STATIC, on_gpu
from support import tiny_run

pytestmark = [*MARKS, pytest.mark.timeout(600)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_compiled_model_is_captured_too(tiny_corpus, tmp_path, stage):
    options = {"plain": [], "compiled": ["train.compile=true"], "captured": ["train.compile=true", STATIC]}
    calls = [
        [
            "make_steps",
            {
                "overrides": tiny_run(tiny_corpus, tmp_path, f"with_{name}{stage}", f"train.zero_stage={stage}", *more),
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
