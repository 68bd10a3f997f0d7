"""The bottleneck product as one Triton kernel, and what its backward needs beyond plain matrix products.

Shapes: T tokens, N in-features, R width of the bottleneck, M out-features, P blocks of tokens; R is padded to a power
of two in the kernels. h = x A and z = act(h) · gate are (T, R). This module needs triton: import it where it is used.
"""

import math
import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from benchmarks.kernels.bottleneck import ACTIVATIONS
from comera_dist.errors import ConfigError
from comera_dist.ops.autocast import compute_dtype

MAX_RANK = 256  # a block of tokens keeps its whole bottleneck in registers and shared memory
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKWARD_BLOCK_T = 64  # not tuned: it sets the number of partial sums of the gate's gradient
# Tokens from which blocks are chosen anew: 128 blocks of 64 fill a GPU of 132 processors, so fewer tokens want smaller
# blocks. Every number of tokens could have its own choice, which would take as many times as long.
MANY_TOKENS = 8192

FORWARD_CONFIGS = [
    triton.Config({"BLOCK_T": 64, "BLOCK_N": 64, "BLOCK_M": 64}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_T": 128, "BLOCK_N": 64, "BLOCK_M": 128}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_T": 64, "BLOCK_N": 32, "BLOCK_M": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_T": 32, "BLOCK_N": 32, "BLOCK_M": 32}, num_warps=4, num_stages=2),
]
BACKWARD_CONFIGS = [
    triton.Config({"BLOCK_M": 64}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_M": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_M": 32}, num_warps=8, num_stages=2),
]


def _choices(configs: list[triton.Config]) -> list[triton.Config]:
    """What Triton chooses from by timing; one alone where it interprets kernels on a CPU and cannot time them."""
    return configs[:1] if os.environ.get("TRITON_INTERPRET") == "1" else configs


def fitting_configs(configs: list[triton.Config], arguments: dict, **settings) -> list[triton.Config]:
    """Those whose bottleneck stays in registers; others would take minutes to compile, and then lose."""
    row_bytes = settings["PADDED_R"] * arguments["x_TN"].element_size()
    return [config for config in configs if config.kwargs["BLOCK_T"] * row_bytes <= 2**15]


def fused_bottleneck_product(
    x: Tensor, A_NR: Tensor, gate_R: Tensor, B_RM: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """bottleneck_product of float32, bfloat16 or float16 in one kernel, which adds up in fp32: y of shape (…, M).

    Keeps its inputs and h for backward. The kernels multiply fp32 as fp32, never as TF32. Raises ConfigError
    for another dtype, or for an R above MAX_RANK, whose blocks do not fit the shared memory of a GPU.
    """
    dtype, silu = compute_dtype(x), ACTIVATIONS[activation] is not ACTIVATIONS["none"]
    _check(dtype, B_RM.shape[0])
    x_TN = x.to(dtype).reshape(math.prod(x.shape[:-1]), x.shape[-1])
    bias_M = None if bias is None else bias.contiguous()
    y_TM = _BottleneckProduct.apply(x_TN, A_NR.to(dtype), gate_R.contiguous(), B_RM.to(dtype), bias_M, silu)
    return y_TM.reshape(*x.shape[:-1], B_RM.shape[1])


class _BottleneckProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TN, A_NR, gate_R, B_RM, bias_M, silu):
        (T, N), (R, M) = x_TN.shape, B_RM.shape
        h_TR, y_TM = x_TN.new_empty(T, R), x_TN.new_empty(T, M)
        if T:
            _forward_kernel[lambda config: (triton.cdiv(T, config["BLOCK_T"]),)](
                *(x_TN, A_NR, gate_R, B_RM, bias_M, h_TR, y_TM, T, N, M, R, int(T >= MANY_TOKENS)),
                *(*x_TN.stride(), *A_NR.stride(), *B_RM.stride()),
                SILU=silu,
                PADDED_R=_padded(R),
            )
        ctx.save_for_backward(x_TN, A_NR, gate_R, B_RM, h_TR)
        ctx.silu = silu
        return y_TM

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y_TM):
        x_TN, A_NR, gate_R, B_RM, h_TR = ctx.saved_tensors
        needs_x, needs_A, _, needs_B, needs_bias, _ = ctx.needs_input_grad
        with torch.autocast(x_TN.device.type, enabled=False):
            z_TR, grad_h_TR, grad_gate_R = _backward_of_bottleneck(grad_y_TM, B_RM, gate_R, h_TR, ctx.silu)
            grad_x_TN = grad_h_TR @ A_NR.T if needs_x else None
            grad_A_NR = x_TN.T @ grad_h_TR if needs_A else None
            grad_B_RM = z_TR.T @ grad_y_TM if needs_B else None
            grad_bias_M = grad_y_TM.sum(0, dtype=torch.float32) if needs_bias else None
        return grad_x_TN, grad_A_NR, grad_gate_R.to(gate_R.dtype), grad_B_RM, grad_bias_M, None


def _backward_of_bottleneck(
    grad_y_TM: Tensor, B_RM: Tensor, gate_R: Tensor, h_TR: Tensor, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """z once more, and the gradients of h and of the gate, the latter fp32."""
    (T, R), M = h_TR.shape, B_RM.shape[1]
    blocks = triton.cdiv(T, BACKWARD_BLOCK_T)
    z_TR, grad_h_TR = torch.empty_like(h_TR), torch.empty_like(h_TR)
    grad_gate_PR = h_TR.new_empty(blocks, R, dtype=torch.float32)
    if T and R:
        BLOCK_R = min(128, _padded(R))
        _backward_kernel[(blocks * triton.cdiv(R, BLOCK_R),)](
            *(grad_y_TM, B_RM, gate_R, h_TR, z_TR, grad_h_TR, grad_gate_PR, T, M, R, int(T >= MANY_TOKENS)),
            *(*grad_y_TM.stride(), *B_RM.stride()),
            SILU=silu,
            BLOCK_T=BACKWARD_BLOCK_T,
            BLOCK_R=BLOCK_R,
        )
    return z_TR, grad_h_TR, grad_gate_PR.sum(0)


@triton.autotune(
    configs=_choices(FORWARD_CONFIGS),
    key=["N", "M", "PADDED_R", "many_tokens"],
    prune_configs_by={"early_config_prune": fitting_configs},
)
@triton.jit(do_not_specialize=["many_tokens"])  # it is a key alone
def _forward_kernel(
    x_TN, A_NR, gate_R, B_RM, bias_M, h_TR, y_TM, T, N, M, R, many_tokens,
    x_row, x_column, A_row, A_column, B_row, B_column,
    SILU: tl.constexpr, PADDED_R: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * BLOCK_T
    rows, left = tl.arange(0, BLOCK_T), T - first
    ranks = tl.arange(0, PADDED_R)
    h = tl.zeros((BLOCK_T, PADDED_R), tl.float32)
    for start in range(0, N, BLOCK_N):
        features = start + tl.arange(0, BLOCK_N)
        x = _load(x_TN + first * x_row, rows, features, left, N, x_row, x_column)
        A = _load(A_NR, features, ranks, N, R, A_row, A_column)
        h = tl.dot(x, A, h, input_precision="ieee")
    _store(h_TR + first * R, rows, ranks, left, R, h)
    activated, _ = _activate(h, SILU)
    z = (activated * _load_row(gate_R, ranks, R)).to(x_TN.dtype.element_ty)
    for start in range(0, M, BLOCK_M):
        outputs = start + tl.arange(0, BLOCK_M)
        B = _load(B_RM, ranks, outputs, R, M, B_row, B_column)
        y = tl.dot(z, B, input_precision="ieee")
        if bias_M is not None:
            y += _load_row(bias_M, outputs, M)
        _store(y_TM + first * M, rows, outputs, left, M, y)


@triton.autotune(configs=_choices(BACKWARD_CONFIGS), key=["M", "BLOCK_R", "many_tokens"])
@triton.jit(do_not_specialize=["many_tokens"])
def _backward_kernel(
    grad_y_TM, B_RM, gate_R, h_TR, z_TR, grad_h_TR, grad_gate_PR, T, M, R, many_tokens,
    grad_y_row, grad_y_column, B_row, B_column,
    SILU: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    slices = tl.cdiv(R, BLOCK_R)
    block = (tl.program_id(0) // slices).to(tl.int64)
    ranks = tl.program_id(0) % slices * BLOCK_R + tl.arange(0, BLOCK_R)
    first = block * BLOCK_T
    rows, left = tl.arange(0, BLOCK_T), T - first
    grad_z = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    for start in range(0, M, BLOCK_M):
        outputs = start + tl.arange(0, BLOCK_M)
        grad_y = _load(grad_y_TM + first * grad_y_row, rows, outputs, left, M, grad_y_row, grad_y_column)
        B_transposed = _load(B_RM, outputs, ranks, M, R, B_column, B_row)
        grad_z = tl.dot(grad_y, B_transposed, grad_z, input_precision="ieee")
    h = _load(h_TR + first * R, rows, ranks, left, R, R, 1).to(tl.float32)
    activated, slope = _activate(h, SILU)
    gate = _load_row(gate_R, ranks, R)
    _store(z_TR + first * R, rows, ranks, left, R, activated * gate)
    _store(grad_h_TR + first * R, rows, ranks, left, R, grad_z * gate * slope)
    # One row of sums a block, added up afterwards: atomic additions would make the result depend on timing.
    tl.store(grad_gate_PR + block * R + ranks, tl.sum(grad_z * activated, axis=0), mask=ranks < R)


@triton.jit
def _activate(h, SILU: tl.constexpr):
    """The activation and its derivative."""
    if SILU:
        sigmoid = tl.sigmoid(h)
        return h * sigmoid, sigmoid * (1 + h * (1 - sigmoid))
    else:
        return h, tl.full(h.shape, 1, tl.float32)


@triton.jit
def _load(matrix, rows, columns, num_rows, num_columns, row_stride, column_stride):
    """A block of a matrix, zero outside it."""
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    offsets = columns[None, :].to(tl.int64) * column_stride  # the columns of a transposed input can be far apart
    return tl.load(matrix + rows[:, None] * row_stride + offsets, mask=inside, other=0.0)


@triton.jit
def _load_row(vector, columns, num_columns):
    return tl.load(vector + columns, mask=columns < num_columns, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _store(matrix, rows, columns, num_rows, num_columns, block):
    """Writes a block of a contiguous matrix, in its dtype."""
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    tl.store(matrix + rows[:, None] * num_columns + columns[None, :], block, mask=inside)


def _padded(rank: int) -> int:
    """The smallest width of a matrix-multiply instruction is 16."""
    return max(16, triton.next_power_of_2(rank))


def _check(dtype: torch.dtype, rank: int) -> None:
    remedy = "use bottleneck_product"
    if dtype not in DTYPES:
        raise ConfigError(f"the fused bottleneck kernel has no {dtype}, only float32, bfloat16 and float16: {remedy}")
    if rank > MAX_RANK:
        raise ConfigError(f"rank {rank} is above {MAX_RANK}, the most of the fused bottleneck kernel: {remedy}")
