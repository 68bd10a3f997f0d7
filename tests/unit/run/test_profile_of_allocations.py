"""A GPU notes its allocations in the traced steps alone, also where the trace cannot be written."""

from unittest.mock import MagicMock

import pytest
import torch

from comera_dist.run import profiling
from comera_dist.run.profiling import StepProfile


@pytest.mark.parametrize("is_writable", [True, False])
def test_allocations_are_no_longer_noted_after_the_last_step(tmp_path, monkeypatch, capsys, is_writable):
    noted = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(profiling, "profile", MagicMock())
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: noted.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: None)
    if not is_writable:
        (tmp_path / "profile").write_text("a file in the place of the folder")
    traced = StepProfile(1, 1, tmp_path / "profile")
    with traced.around(1):
        assert list(noted[-1]) == ["max_entries"]
    assert noted[-1] == {"enabled": None}
    assert ("cannot be written" in capsys.readouterr().out) != is_writable
