"""A change of a single bit of a weight on one process is found and named."""

import pytest
import torch
from forked import run_processes

from comera_dist.runtime.agreement import checksums


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_every_change_of_a_bit_changes_the_checksum(chunk):
    weight = torch.randn(40, generator=torch.Generator().manual_seed(0))
    (before,) = checksums([weight], chunk)
    for place in range(40):
        for bit in range(32):
            bits = weight.clone().view(torch.int32)
            bits[place] ^= 1 << bit if bit < 31 else -(2**31)
            assert checksums([bits.view(torch.float32)], chunk)[0] != before


def test_the_order_of_numbers_counts():
    weight = torch.arange(6.0)
    assert len(set(checksums([weight, weight.flip(0), weight.roll(1), torch.zeros(6), torch.zeros(0)]).tolist())) == 4


def test_a_tensor_that_is_not_contiguous_counts_as_its_numbers():
    weight = torch.randn(5, 7)
    assert torch.equal(*checksums([weight.T, weight.T.contiguous()]))


@pytest.mark.distributed
@pytest.mark.parametrize(("count", "process"), [(2, 1), (3, 0)])
def test_processes_find_the_weight_that_parts_them(count, process):
    for said in run_processes(count, "parted_weights", process=process):
        assert said[0] == "alike"
        other = 0 if process else 1
        assert said[1].startswith(f"TrainingError: b on process {process} is not b on process {other} (1 of 3 param")
