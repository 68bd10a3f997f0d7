"""The precision in which a run's own model is the fastest on this machine."""

import time
from typing import NamedTuple

import pytest
import torch
from support import ROOT, tiny_run
from torch import nn

from comera_dist.commands.doctor import precision
from comera_dist.config.reader import read_config
from comera_dist.doctor.finding import Grade
from comera_dist.run.precision_check import fastest, pass_seconds, precision_check
from comera_dist.runtime.processes import alone


class Batch(NamedTuple):
    x: torch.Tensor


class SlowIn(nn.Module):
    """Takes 5 ms longer in one dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.scale, self.dtype = nn.Parameter(torch.ones(2, 2)), dtype

    def forward(self, x):
        y = x @ self.scale
        time.sleep(0.005 if y.dtype == self.dtype else 0)
        return y.sum()


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, "fp32"), (torch.float32, "bf16")])
def test_the_slow_precision_is_found(dtype, expected):
    seconds = pass_seconds(SlowIn(dtype), Batch(torch.ones(2, 2)), torch.device("cpu"))
    assert min(seconds, key=seconds.get) == expected
    assert max(seconds.values()) > 0.005


def test_the_sentence_names_all_precisions():
    found = fastest({"fp32": 2.0, "bf16": 1.0, "fp8": 1.5}, "fp32")
    assert found == (
        "bf16 is fastest, fp32 takes 2.00 times as long, fp8 takes 1.50 times as long; train.precision = fp32"
    )


def test_a_run_is_measured_with_its_own_data(tiny_corpus, tmp_path):
    config = read_config(
        ROOT / "tests/defaults.yaml", [*tiny_run(tiny_corpus, tmp_path, "run"), "train.precision=bf16"]
    )
    assert "is fastest" in precision_check(config, alone()).found
    assert precision_check(config, alone()).found.endswith("train.precision = bf16")


def test_the_doctor_says_why_a_run_cannot_be_measured(tmp_path):
    config = read_config(ROOT / "tests/defaults.yaml", tiny_run(tmp_path / "nothing", tmp_path, "run"))
    (finding,) = precision(config, alone())
    assert finding.grade is Grade.BROKEN
    assert "nothing" in finding.remedy


def test_the_doctor_says_that_the_teacher_of_a_run_is_missing(tiny_corpus, tmp_path):
    taught = f"train.teacher.run={tmp_path}/nobody"
    config = read_config(ROOT / "tests/defaults.yaml", [*tiny_run(tiny_corpus, tmp_path, "run"), taught])
    (finding,) = precision(config, alone())
    assert finding.grade is Grade.BROKEN
    assert "nobody has no config.yaml" in finding.remedy
