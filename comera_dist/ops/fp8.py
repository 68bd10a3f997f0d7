"""Products of matrices in FP8 with one scale a matrix: E4M3 in the forward pass, E5M2 for gradients of results.

Formats and their use: Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv 2209.05433). A scale is that of
the matrix at hand ("current scaling"), so nothing is kept from step to step, and a resumed run rounds as it did before.
Scales are powers of two, which round nothing: a product of the rounded matrices in bf16 is the same to the order of its
sums. So devices without FP8 products emulate them exactly.

Shapes: R rows, K inner, C columns; T tokens, N in-features, M out-features.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
# torch._scaled_mm wants inner numbers and columns in multiples of 16, as cuBLAS does. On an H200 it had no product with
# one row either: the gradient of a layer with one output.
SIDE = 16
FIRST_CAPABILITY = (8, 9)  # of CUDA devices with FP8 products: Ada and Hopper
LARGEST_EXPONENT = 126  # 2^±126 are normal numbers of fp32
EXPONENT_BIAS, MANTISSA_BITS = 127, 23  # of fp32: IEEE 754


class Scaled(NamedTuple):
    """A matrix values · scale; `scale` is a 0-dimensional power of two in fp32."""

    values: Tensor
    scale: Tensor

    @property
    def T(self) -> "Scaled":  # as torch names it
        return Scaled(self.values.T, self.scale)

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The matrix in `dtype`."""
        return self.values.to(dtype) * self.scale.to(dtype)


def fp8_linear(x: Tensor, weight_MN: Tensor, dtype: torch.dtype) -> Tensor:
    """x (…, N) times Wᵀ: (…, M) in `dtype`, in which products add up to their results; differentiable once.

    The backward pass keeps both matrices in 8 bits a number.
    """
    if x.numel() == 0:  # as an expert that no token chose: nothing to round, and no largest entry for a scale
        return F.linear(x.to(dtype), weight_MN.to(dtype))
    y_TM: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight_MN, dtype)  # type: ignore[no-untyped-call]  # torch has no annotation
    return y_TM.reshape(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TN: Tensor, weight_MN: Tensor, dtype: torch.dtype) -> Tensor:
        x, weight = quantize(x_TN, FORWARD), quantize(weight_MN, FORWARD)
        ctx.save_for_backward(*x, *weight)
        ctx.dtype, ctx.dtypes = dtype, (x_TN.dtype, weight_MN.dtype)
        return multiply(x, weight, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TM: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_values, x_scale, weight_values, weight_scale = ctx.saved_tensors
        x, weight, grad = Scaled(x_values, x_scale), Scaled(weight_values, weight_scale), quantize(grad_TM, GRADIENT)
        needs_x, needs_weight, _ = ctx.needs_input_grad
        grad_x = multiply(grad, weight.T, ctx.dtype).to(ctx.dtypes[0]) if needs_x else None
        grad_weight = multiply(grad.T, x.T, ctx.dtype).to(ctx.dtypes[1]) if needs_weight else None
        return grad_x, grad_weight, None


def as_stored_in_fp8(x: Tensor) -> Tensor:
    """x in its own dtype, each number the nearest one of E4M3 with one scale; gradients pass as they are."""
    return _Rounded.apply(x)  # type: ignore[no-any-return, no-untyped-call]  # torch has no annotation


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return quantize(x, FORWARD).widened(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def quantize(matrix_RC: Tensor, dtype: torch.dtype) -> Scaled:
    """The nearest matrix of `dtype` with a scale that puts the largest entry into the upper half of its range.

    An infinite or undefined entry makes all entries undefined, so that the step that made it is seen to be bad.
    """
    least, largest = matrix_RC.aminmax()  # the largest of abs() would take a copy of the matrix
    ratio = torch.maximum(-least, largest).float() / torch.finfo(dtype).max
    # The least power of two above the ratio, without rounding: frexp has ratio = mantissa · 2^exponent. It is made from
    # its bits, because torch.ldexp multiplies by pow(2, exponent), which no device promises to be exact.
    exponent = torch.frexp(ratio).exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    scale = ((exponent + EXPONENT_BIAS) << MANTISSA_BITS).view(torch.float32).where(ratio.isfinite(), torch.nan)
    return Scaled((matrix_RC / scale).to(dtype), scale)


def multiply(left_RK: Scaled, right_CK: Scaled, dtype: torch.dtype) -> Tensor:
    """left rightᵀ (R, C) in `dtype`."""
    if has_fp8_products(left_RK.values.device):
        left, right = _padded(left_RK.values), _padded(right_CK.values)
        # The columns of the right matrix must lie together, which are rows here.
        product = torch._scaled_mm(left, right.T, left_RK.scale, right_CK.scale, out_dtype=dtype)
        return product[: left_RK.values.shape[0], : right_CK.values.shape[0]]
    return emulated(left_RK, right_CK, dtype)


def _padded(matrix: Tensor) -> Tensor:
    """The matrix, row by row in memory; zeros fill up rows and columns to multiples of SIDE."""
    rows, columns = matrix.shape
    more = (0, -columns % SIDE, 0, -rows % SIDE)
    # As bytes, because not all operations know FP8; a zero is a byte of zeros.
    return F.pad(matrix.contiguous().view(torch.uint8), more).view(matrix.dtype) if any(more) else matrix.contiguous()


def emulated(left_RK: Scaled, right_CK: Scaled, dtype: torch.dtype) -> Tensor:
    """`multiply` by a product in `dtype`, which holds every entry of both matrices exactly if it is bf16 or fp32."""
    return left_RK.widened(dtype) @ right_CK.widened(dtype).T


def has_fp8_products(device: torch.device) -> bool:
    """False for processors: torch has FP8 products there, which took 2 to 8 times as long as in bf16 on an AMD EPYC."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
