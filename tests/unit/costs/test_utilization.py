"""Achieved FLOPs against numbers computed by hand."""

import pytest

from comera_dist.config.reader import read_config
from comera_dist.costs.machines import MACHINES, PRODUCT_SHARE
from comera_dist.costs.utilization import DEVICES, peak_flops, utilization
from comera_dist.report.lines import flops_in_words, step_line

RECORD = {"step": 1, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "tokens_per_second": 1.0}


def test_the_share_is_that_of_the_peak():
    assert utilization(6e12, 2.0, None) == {"flops_per_second": 3e12}
    assert utilization(6e12, 2.0, 12e12) == {"flops_per_second": 3e12, "mfu": 0.25}


def test_peaks_are_those_of_the_data_sheets():
    assert peak_flops("NVIDIA H200", "bf16") == peak_flops("NVIDIA H200", "fp8") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12
    assert peak_flops("NVIDIA GeForce", "bf16") is None
    for name in DEVICES.values():  # predictions at scale take the reachable share of the same peaks
        assert MACHINES[name].flops == {size: PRODUCT_SHARE * peak for size, peak in MACHINES[name].peak.items()}


@pytest.mark.parametrize(
    ("flops", "words"),
    [(0, "0 "), (12.34, "12.3 "), (999.9, "1 k"), (1.35e9, "1.35 G"), (4.2e14, "420 T"), (4.2e19, "42,000 P")],
)
def test_flops_in_words(flops, words):
    assert flops_in_words(flops) == words


def test_the_console_shows_the_share_where_it_is_known():
    config = read_config(None, ["train.steps=2"])
    line = step_line({**RECORD, "flops_per_second": 1.35e9}, config, 1.0, 2.0)
    assert "| 1.35 GFLOP/s | 2.0× smaller" in line
    assert "| 400 TFLOP/s (MFU 40%) |" in step_line(
        {**RECORD, "flops_per_second": 4e14, "mfu": 0.404}, config, 1.0, 2.0
    )
