"""Products of fp32 matrices by oneDNN, on processors where torch's own choice is slow.

torch's wheels for x86 multiply fp32 matrices by MKL, which has its fastest kernels for Intel's processors alone. On one
core of an AMD EPYC with AVX-512 it makes 100 GFLOP/s, and oneDNN, by which the same wheels multiply bf16, 240
(benchmarks/products.py). So torch's kernels of single and batched products on the CPU are replaced, also within
backward passes and optimizers. Single products with an `out`, and code that torch.compile generates, stay MKL's.

Shapes: B matrices of a batch, R rows, K inner, C columns.
"""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

# Multiplications of the smallest product that goes to oneDNN, 128 × 128 × 128: a call of a kernel in Python takes as
# long as smaller ones (measured on an AMD EPYC).
LEAST = 1 << 21
# Inner numbers of the least sum in place that goes to oneDNN, which needs a second pass over the sum. Measured for the
# gradient of a head of 32,000 rows of 512: with 131 tokens a product 0.66, with 512 1.05 times as fast as MKL.
DEEP = 512
# Inner numbers of the least product in a batch whose left matrices are turned and have gaps, which are copied. Measured
# for the outputs of block trains: with 96 1.0, with 128 1.2 to 1.5, with 512 1.9 times as fast as MKL.
DEEP_TURNED = 128
CPU_FACTS = Path("/proc/cpuinfo")

# They have kernels of their own, which stay torch's.
_mkl: Callable[..., Tensor] = torch.ops.aten.mm.out
_mkl_add: Callable[..., Tensor] = torch.ops.aten.addmm.out
_mkl_add_batch: Callable[..., Tensor] = torch.ops.aten.baddbmm.out


@cache
def mkl_is_slow(facts: Path = CPU_FACTS) -> bool:
    """Whether torch multiplies by MKL on a processor that is not Intel's, and has oneDNN. False where this is unknown.

    It follows from the processor and not from a measurement, so that a resumed run multiplies as it did before.
    """
    # torch has no public name for oneDNN's product.
    if not (torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):  # type: ignore[no-untyped-call]
        return False
    try:
        vendors = {
            line.split(":")[1].strip() for line in facts.read_text().splitlines() if line.startswith("vendor_id")
        }
    except OSError:
        return False
    return bool(vendors) and "GenuineIntel" not in vendors


@cache  # once in a process, and torch's kernels come back when the library is dropped
def use_fastest_products() -> torch.library.Library | None:
    """Multiplies by oneDNN in this process from now on, if MKL is slow on its processor."""
    return onednn_kernels() if mkl_is_slow() else None


def write_products(left_BRK: Tensor, right_BKC: Tensor, out_BRC: Tensor) -> None:
    """As torch.bmm with an `out`, of any strides.

    Where oneDNN is in use but MKL makes these products, a sum that drops what was there spares the way through Python.
    Tensors without values, by which work is predicted, do not take it: a prediction is the same in every process.
    """
    is_in_use = use_fastest_products.cache_info().currsize > 0 and mkl_is_slow()
    is_plain = type(left_BRK) is Tensor and left_BRK.is_cpu and left_BRK.dtype is torch.float32
    if is_in_use and is_plain and not _batch_suits(left_BRK, right_BKC):
        torch.baddbmm(out_BRC, left_BRK, right_BKC, beta=0, out=out_BRC)
    else:
        torch.bmm(left_BRK, right_BKC, out=out_BRC)


def onednn_kernels() -> torch.library.Library:
    """Replaces torch's kernels in this process, as long as the library lives."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch's omission
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch names every kernel that is replaced
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU", allow_override=True)  # type: ignore[no-untyped-call]
    return library


def _mm(left_RK: Tensor, right_KC: Tensor) -> Tensor:
    if _suits(left_RK, right_KC):
        return _product(left_RK, right_KC, None)
    return _mkl(left_RK, right_KC, out=left_RK.new_empty(0))


def _addmm(added: Tensor, left_RK: Tensor, right_KC: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    # oneDNN reads a bias as if its numbers lay side by side in memory, in their own dtype.
    is_bias = added.shape == right_KC.shape[1:] and added.is_contiguous() and added.dtype is torch.float32
    if is_bias and _suits(left_RK, right_KC) and beta == alpha == 1:  # nn.Linear's bias
        return _product(left_RK, right_KC, added)
    return _mkl_add(added, left_RK, right_KC, beta=beta, alpha=alpha, out=left_RK.new_empty(0))


def _addmm_(total_RC: Tensor, left_RK: Tensor, right_KC: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    is_large = left_RK.shape[1] >= DEEP and _suits(left_RK, right_KC)
    if is_large and total_RC.dtype is torch.float32 and beta == alpha == 1:
        return total_RC.add_(_product(left_RK, right_KC, None))
    return _mkl_add(total_RC, left_RK, right_KC, beta=beta, alpha=alpha, out=total_RC)


def _bmm(left_BRK: Tensor, right_BKC: Tensor) -> Tensor:
    are_batches = left_BRK.dim() == right_BKC.dim() == 3
    shape = (*left_BRK.shape[:2], right_BKC.shape[2]) if are_batches else (0,)
    return _bmm_out(left_BRK, right_BKC, out=left_BRK.new_empty(shape))


def _bmm_out(left_BRK: Tensor, right_BKC: Tensor, *, out: Tensor) -> Tensor:
    are_batches = left_BRK.dim() == right_BKC.dim() == 3
    fits = are_batches and out.shape == (*left_BRK.shape[:2], right_BKC.shape[2])
    if fits and out.dtype is torch.float32 and _batch_suits(left_BRK, right_BKC):
        for product, left, right in zip(out.unbind(), left_BRK.unbind(), right_BKC.unbind(), strict=True):
            product.copy_(_any_order(left, _dense(right)))
        return out
    # As a sum that drops what was there: both kernels of bmm are replaced. torch resizes an `out` of another shape.
    return _mkl_add_batch(out if fits else left_BRK.new_zeros(()), left_BRK, right_BKC, beta=0, alpha=1, out=out)


def _baddbmm(added: Tensor, left_BRK: Tensor, right_BKC: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    fits = left_BRK.dim() == right_BKC.dim() == 3 and added.shape == (*left_BRK.shape[:2], right_BKC.shape[2])
    if not fits or added.dtype is not torch.float32 or not _batch_suits(left_BRK, right_BKC):
        return _mkl_add_batch(added, left_BRK, right_BKC, beta=beta, alpha=alpha, out=left_BRK.new_empty(0))
    # As torch's, whose `beta` of 0 drops what was there, be it undefined: callers hand in memory without values.
    out = added * beta if beta != 0 else torch.zeros_like(added, memory_format=torch.contiguous_format)
    for total, left, right in zip(out.unbind(), left_BRK.unbind(), right_BKC.unbind(), strict=True):
        total.add_(_any_order(left, _dense(right)), alpha=alpha)
    return out


def _product(left_RK: Tensor, right_KC: Tensor, bias_C: Tensor | None) -> Tensor:
    return _any_order(left_RK, right_KC).contiguous() if bias_C is None else _onednn(left_RK, right_KC, bias_C)


def _any_order(left_RK: Tensor, right_KC: Tensor) -> Tensor:
    """The product row by row or column by column in memory.

    A turned left matrix, as of a weight's gradient, takes up to 2.7 times as long if it is the longer side, and so does
    one with gaps. So the product is turned.
    """
    if _is_turned(left_RK) and left_RK.shape[0] > right_KC.shape[1]:
        return _onednn(right_KC.t(), _dense(left_RK.t()), None).t()
    return _onednn(left_RK, right_KC, None)


def _onednn(left_RK: Tensor, right_KC: Tensor, bias_C: Tensor | None) -> Tensor:
    product_RC: Tensor = torch.ops.mkldnn._linear_pointwise.default(left_RK, right_KC.t(), bias_C, "none", [], "")
    return product_RC


def _suits(left_RK: Tensor, right_KC: Tensor) -> bool:
    """Whether oneDNN is fast. With gaps between the rows of the right matrix it takes a thousand times as long."""
    return _can_multiply(left_RK, right_KC, LEAST) and _is_dense(right_KC)


def _batch_suits(left_BRK: Tensor, right_BKC: Tensor) -> bool:
    """As `_suits`. MKL deals the products of a batch out to threads, and oneDNN makes them one after the other.

    Right matrices with gaps are copied, which doubles the least size (measured on one and two threads).
    """
    if not (left_BRK.dim() == right_BKC.dim() == 3 and left_BRK.shape[0] == right_BKC.shape[0] > 0):
        return False
    least = LEAST * torch.get_num_threads()
    if left_BRK.shape[1] * right_BKC.shape[1] * right_BKC.shape[2] < least:  # the usual end, before views are made
        return False
    left_RK, right_KC = left_BRK[0], right_BKC[0]
    if _is_turned(left_RK) and not _is_dense(left_RK) and left_RK.shape[1] < DEEP_TURNED:
        return False
    return _can_multiply(left_RK, right_KC, least if _is_dense(right_KC) else 2 * least)


def _can_multiply(left_RK: Tensor, right_KC: Tensor, least: int) -> bool:
    """Whether it is a product of at least so many multiplications in fp32 of matrices that lie in rows or columns.

    False for shapes that cannot be multiplied: torch's kernel has a sentence for them, oneDNN an error of its own.
    """
    if not (left_RK.dim() == right_KC.dim() == 2 and left_RK.shape[1] == right_KC.shape[0]):
        return False
    have_rows = all(1 in matrix.stride() and 0 not in matrix.stride() for matrix in (left_RK, right_KC))
    is_large = left_RK.shape[0] * right_KC.numel() >= least
    return is_large and have_rows and left_RK.dtype is torch.float32 is right_KC.dtype


def _is_turned(matrix: Tensor) -> bool:
    return matrix.stride(0) == 1 != matrix.stride(1)


def _is_dense(matrix: Tensor) -> bool:
    return matrix.is_contiguous() or matrix.t().is_contiguous()


def _dense(matrix: Tensor) -> Tensor:
    """The matrix without gaps between its rows or columns."""
    if _is_dense(matrix):
        return matrix
    return matrix.t().contiguous().t() if matrix.stride(0) == 1 else matrix.contiguous()


KERNELS = {"mm": _mm, "addmm": _addmm, "addmm_": _addmm_, "bmm": _bmm, "bmm.out": _bmm_out, "baddbmm": _baddbmm}
