"""FP8 products of a GPU against their emulation."""

import pytest
import torch

from comera_dist.ops.fp8 import FIRST_CAPABILITY, FORWARD, GRADIENT, emulated, multiply, quantize

HAS_FP8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= FIRST_CAPABILITY
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_FP8, reason="FP8 products need a CUDA device of capability 8.9 or more; there is none"),
]


@pytest.mark.parametrize("left", [FORWARD, GRADIENT])
def test_the_device_multiplies_as_the_emulation_does(left):
    generator = torch.Generator("cuda").manual_seed(1)
    a, b = (torch.randn(rows, 256, device="cuda", generator=generator) for rows in (128, 64))
    scaled = quantize(a, left), quantize(b, FORWARD)
    # Sums of 256 numbers in another order, and within tensor cores in fewer bits than fp32 has.
    torch.testing.assert_close(multiply(*scaled, torch.float32), emulated(*scaled, torch.float32), rtol=1e-2, atol=1e-2)
