"""Liger's rotary kernel on a GPU against torch's operations, in the memory layout of attention."""

import pytest
import torch

from comera_dist.models.decoder.positions import rotary_tables, rotate
from comera_dist.ops import liger

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="Liger runs on a CUDA device, and there is none"),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # relative to the largest entry


def _heads(heads, dtype):
    generator = torch.Generator("cuda").manual_seed(heads)
    x_BSD = torch.randn(3, 50, heads * 64, device="cuda", generator=generator).to(dtype).requires_grad_()
    return x_BSD, x_BSD.view(3, 50, heads, 64).transpose(1, 2)


def _outcome(dtype, position):
    (q, q_BHSE), (k, k_BKSE) = _heads(12, dtype), _heads(4, dtype)
    turned = rotate(q_BHSE, k_BKSE, *rotary_tables(position, 64, 10_000))
    grads = torch.autograd.grad(sum((x.float() ** 2).flatten().cumsum(0).mean() for x in turned), (q, k))
    return [*turned, *grads, q, k]


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_kernel_turns_as_torch_does_and_leaves_its_inputs(dtype, is_packed, monkeypatch):
    pytest.importorskip("liger_kernel", reason="compares with Liger's kernel, which needs liger_kernel")
    position = torch.arange(50, device="cuda")
    position = (position - torch.tensor([0, 7, 30], device="cuda")[:, None])[:, None] if is_packed else position
    found = _outcome(dtype, position)
    monkeypatch.setattr(liger, "liger_is_installed", lambda: False)
    for mine, wanted in zip(found, _outcome(dtype, position), strict=True):
        assert mine.dtype == dtype
        assert (mine - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
