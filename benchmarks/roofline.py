"""The least time of a linear layer on this machine: its bytes and FLOPs at measured rates.

Shapes: N in-features, M out-features, T tokens, R middle rank (None: a dense layer).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.report import milliseconds

Timed = Callable[[Callable[[], object], torch.device], float]  # milliseconds of a call on a device


@dataclass(frozen=True)
class Rates:
    """Bytes that a large copy reads and writes, and FLOPs of a large square product, per millisecond."""

    bytes_per_ms: float
    flops_per_ms: float

    def __str__(self) -> str:
        return f"copy {self.bytes_per_ms / 1e6:.1f} GB/s, matrix product {self.flops_per_ms / 1e9:.3f} TFLOP/s"


def measured_rates(
    copy_bytes: int, matrix_size: int, device: torch.device, dtype: torch.dtype, timed: Timed = milliseconds
) -> Rates:
    """The best of five copies of `copy_bytes` and of five products of square matrices in `dtype`."""
    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matrix = torch.randn(matrix_size, matrix_size, device=device).to(dtype)
    copy = min(timed(lambda: target.copy_(source), device) for _ in range(5))
    product = min(timed(lambda: matrix @ matrix, device) for _ in range(5))
    return Rates(2 * copy_bytes / copy, 2 * matrix_size**3 / product)


def linear_flops(n: int, m: int, tokens: int, rank: int | None) -> int:
    """Forward and backward: 6·T·R·(N+M) through two factors, 6·T·N·M through one matrix; merging cores is not counted.

    2 FLOPs per entry and token, and each product of the forward pass has two of its size in the backward pass.
    """
    return 6 * tokens * (n * m if rank is None else rank * (n + m))


def linear_bytes(n: int, m: int, tokens: int, rank: int | None, parameters: int, number_bytes: int) -> int:
    """b·T·(3·N + 2·M + 2·R) + 12·parameters, with b bytes a number; R = 0 in a dense layer.

    Per token: x is read in both passes and its gradient written; y is written and its gradient read; the R-wide
    intermediate is written in the forward and read in the backward pass. Parameters are fp32: read in both passes,
    their gradients written. Merged factors, casts and repeated reads are not counted: a layer could do without them.
    """
    return number_bytes * tokens * (3 * n + 2 * m + 2 * (rank or 0)) + 3 * 4 * parameters


def floor_ms(n: int, m: int, tokens: int, rank: int | None, parameters: int, dtype: torch.dtype, rates: Rates) -> float:
    """The longer of moving the bytes and computing the FLOPs. Data in caches move faster, so a time may be below it."""
    moved = linear_bytes(n, m, tokens, rank, parameters, dtype.itemsize)
    return max(moved / rates.bytes_per_ms, linear_flops(n, m, tokens, rank) / rates.flops_per_ms)
