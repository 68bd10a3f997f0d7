"""Rotary positions by Liger's kernel; Triton's interpreter runs `interpreted_*`."""

import pytest
import torch
from triton_interpreter import run_interpreted

from comera_dist.models.decoder.positions import rotary_tables, rotate, turned_by_liger


def test_liger_under_tritons_interpreter():
    pytest.importorskip("liger_kernel", reason="compares with Liger's kernel, which needs liger_kernel")
    run_interpreted(__file__)


def _outcome(turn, dtype, position):
    """Turned queries and keys as attention has them, their gradients, and the tensors that they are views of."""
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(2, 9, heads * 8, generator=generator).to(dtype).requires_grad_() for heads in (6, 2)]
    q_BHSE, k_BKSE = (2 * x.view(2, 9, -1, 8).transpose(1, 2) for x in given)
    before = q_BHSE.detach().clone()
    turned = turn(q_BHSE, k_BKSE, *rotary_tables(position, 8, 10_000))
    upstream = [torch.randn(x.shape, generator=generator).to(dtype) for x in turned]
    assert torch.equal(q_BHSE, before)
    return [*turned, *torch.autograd.grad(turned, given, upstream)]


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def interpreted_the_kernel_turns_as_torch_does(dtype, is_packed, assert_close):
    position = torch.arange(9)
    position = (position - torch.tensor([0, 4])[:, None])[:, None] if is_packed else position
    found, expected = (_outcome(turn, dtype, position) for turn in (turned_by_liger, rotate))
    for mine, oracle in zip(found, expected, strict=True):
        assert mine.dtype == oracle.dtype
        assert_close(mine, oracle, dtype)
