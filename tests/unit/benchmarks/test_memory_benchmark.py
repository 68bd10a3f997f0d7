"""The benchmark of predicted memory measures every case that it names."""

import sys

import pytest

from benchmarks import memory
from benchmarks.commands import result_of
from comera_dist.config.reader import read_config

TINY = [*memory.DECODER, *memory.TINY]


@pytest.mark.parametrize(("name", "overrides", "modes"), memory.CASES, ids=[case[0] for case in memory.CASES])
def test_cases_can_be_configured(name, overrides, modes):
    for mode in modes:
        read_config(None, [*overrides, f"train.activation_checkpointing={mode}"])


def test_a_row_compares_the_prediction_with_both_measurements(monkeypatch):
    measured = {"--measure": str(4 * memory.MIB), "--keep-freed": str(9 * memory.MIB)}
    monkeypatch.setattr(memory, "result_of", lambda command: measured[command[-1]])
    monkeypatch.setattr(memory, "predicted_bytes", lambda config: 5 * memory.MIB)
    rows = list(memory.rows_of([("tiny", TINY, ("none", "block"))]))
    assert [row["recomputed"] for row in rows] == ["none", "block"]
    assert list(rows[0].values())[2:] == [5, 4, "+25.0%", 9]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of resident memory is read on Linux")
def test_memory_of_two_steps_is_measured_in_a_process():
    assert int(result_of([sys.executable, memory.__file__, *TINY, "--measure"])) > 0
