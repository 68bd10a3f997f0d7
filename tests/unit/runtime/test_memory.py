"""Peak memory is that of this program, whatever started it."""

import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from comera_dist.errors import ConfigError, TrainingError
from comera_dist.runtime.memory import STATUS, check_fits, lack_of_memory_named, peak_resident_bytes

MEBIBYTE = 2**20


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells a program's own peak apart from its parent's")
def test_a_child_does_not_report_the_peak_of_its_parent():
    child = "from comera_dist.runtime.memory import peak_resident_bytes as p; print(p())"
    parent = (
        "import subprocess, sys, numpy as np; held = np.ones(200 * 2**20);"
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True).stdout)"
    )
    alone, under = (
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        for code in (child, parent)
    )
    assert under == pytest.approx(alone, rel=0.1)


def test_memory_that_is_touched_is_counted():
    before = peak_resident_bytes()
    held = np.ones(before // 8 + 50 * MEBIBYTE // 8)  # more than was ever resident
    assert peak_resident_bytes() >= before + 40 * MEBIBYTE
    del held


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="looks where glibc's allocator puts a large buffer")
def test_large_buffers_stay_in_the_heap():
    code = """
import sys, torch
from comera_dist.runtime.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
address = torch.empty(2**24).data_ptr()
heap = next(line for line in open("/proc/self/maps") if "[heap]" in line).split()[0].split("-")
print(int(int(heap[0], 16) <= address < int(heap[1], 16)))
"""
    usual, kept = (
        int(subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True).stdout)
        for mode in ("leave", "keep")
    )
    assert (usual, kept) == (0, 1)


def test_what_cannot_be_held_is_one_sentence():
    check_fits("the rows of one step", MEBIBYTE, torch.device("cpu"))
    with pytest.raises(
        ConfigError, match=r"weights would take 1,048,576.0 GiB on each process, and this machine has .* GiB"
    ):
        check_fits("weights", 2**50, torch.device("cpu"))


@pytest.mark.parametrize("size", [2**55, 2**62])
def test_memory_that_runs_out_is_one_sentence(size):
    with pytest.raises(TrainingError, match=r"memory ran out .*; lower train.micro_batch or"), lack_of_memory_named():
        torch.empty(size)
    with pytest.raises(RuntimeError, match="size of tensor"), lack_of_memory_named():
        torch.ones(2) + torch.ones(3)
