"""Moments in 8 bits on a GPU against those on a CPU."""

import pytest
import torch

from comera_dist.optim.base import MEAN, SQUARE
from comera_dist.optim.narrow_moments import decoded, encoded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="moments on a GPU need CUDA; there is none"),
]


@pytest.mark.parametrize("role", [MEAN, SQUARE])
def test_the_device_finds_the_same_codes(role):
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    x = x.square() if role == SQUARE else x
    expected, found = encoded(x, role), encoded(x.cuda(), role)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(expected, found, strict=True))
    assert torch.equal(decoded(*expected, role), decoded(*found, role).cpu())
