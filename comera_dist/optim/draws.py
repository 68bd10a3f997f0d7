"""Random numbers that follow from a text, such as the name of a layer and a step.

So they are the same on every process, at every ZeRO stage and after any resume, and need not be stored.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BITS = 32  # of a seed: PyTorch's CPU generator forgets higher ones


def normals(key: str, shape: Sequence[int], device: "torch.device | str" = "cpu") -> "Tensor":
    """Standard normal numbers of `shape`. Another kind of device has others."""
    import torch

    return torch.randn(tuple(shape), generator=_generator(key, device), device=device)


def uniforms(key: str, shape: Sequence[int], device: "torch.device | str" = "cpu") -> "Tensor":
    """Numbers of `shape` in [0, 1). Another kind of device has others."""
    import torch

    return torch.rand(tuple(shape), generator=_generator(key, device), device=device)


def integers(key: str, count: int, shape: Sequence[int], device: "torch.device | str" = "cpu") -> "Tensor":
    """Numbers of `shape` among 0 to count - 1, in 32 bits. Another kind of device has others."""
    import torch

    return torch.randint(count, tuple(shape), generator=_generator(key, device), dtype=torch.int32, device=device)


def uniform(key: str) -> float:
    """A number in [0, 1)."""
    return _seed(key) / (1 << BITS)


def _generator(key: str, device: "torch.device | str") -> "torch.Generator":
    import torch

    return torch.Generator(device).manual_seed(_seed(key))


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=BITS // 8).digest(), "big")
