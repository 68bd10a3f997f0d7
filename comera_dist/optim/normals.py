"""Random numbers that follow from a text, so that no process keeps the state of a generator."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor


def drawn(key: str, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers of `shape` that follow from `key`; on the CPU, so that every device has the same."""
    # PyTorch's CPU generator uses only the lower 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(tuple(shape), generator=generator)
