"""Products of activations and weights, the one place where layers of all formats make them: in fp32, bf16 or FP8.

Shapes: N in-features, M out-features; x is (…, N).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.nn import functional as F

from comera_dist.ops.autocast import compute_dtype
from comera_dist.ops.fp8 import as_stored_in_fp8, fp8_linear

_in_fp8 = False


@contextmanager
def fp8_products(enabled: bool = True) -> Iterator[None]:
    """Within this block layers multiply in FP8, and their backward passes do whenever they run; process-wide."""
    global _in_fp8
    before, _in_fp8 = _in_fp8, enabled
    try:
        yield
    finally:
        _in_fp8 = before


def are_fp8() -> bool:
    """Whether layers multiply in FP8 now."""
    return _in_fp8


def linear(x: Tensor, weight_MN: Tensor, bias_M: Tensor | None = None) -> Tensor:
    """x Wᵀ + bias: (…, M), which is of the dtype of x or of autocast."""
    if _in_fp8:
        y = fp8_linear(x, weight_MN, compute_dtype(x))
        return y if bias_M is None else y + bias_M.to(y.dtype)
    return F.linear(x, weight_MN, bias_M)


def multiply(x: Tensor, weight_NM: Tensor) -> Tensor:
    """x W: (…, M), as `linear` of a weight that is stored with in-features first."""
    return linear(x, weight_NM.T) if _in_fp8 else x @ weight_NM


def table_cores(cores: Sequence[Tensor]) -> Sequence[Tensor]:
    """The cores as rows of a table are made of them: with `fp8_products` of the numbers that 8 bits keep of each core.

    Rows are products of few small blocks for each id, so the products themselves stay in the dtype of the cores.
    """
    return [as_stored_in_fp8(core) for core in cores] if _in_fp8 else cores
