"""The bottleneck kernel at the sizes of real layers, against float64 on the same GPU."""

import pytest
import torch

from benchmarks.kernels.bottleneck import bottleneck_product

pytest.importorskip("triton", reason="the kernel needs triton")
from benchmarks.kernels.bottleneck_kernel import MAX_RANK, fused_bottleneck_product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on a CUDA device, and there is none"),
]
SHAPES = [(8192, 768, 768, 64), (8192, 768, 2048, 96), (4099, 2048, 768, 128), (1000, 1030, 1021, 200)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}  # relative to the largest entry


def _inputs(tokens, N, M, R, dtype, bias=True):
    generator = torch.Generator("cuda").manual_seed(20240521)
    shapes, scales = [(tokens, N), (N, R), (R,), (R, M), (M,)], [1, N**-0.5, 1, R**-0.5, 1]
    tensors = [
        torch.randn(shape, generator=generator, device="cuda") * scale
        for shape, scale in zip(shapes, scales, strict=True)
    ]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors[: 5 if bias else 4]]


def _outcome(product, inputs, activation, grad_y):
    x, A, gate, B, *bias = inputs
    y = product(x, A, gate, B, *(bias or [None]), activation)
    return [y.detach(), *torch.autograd.grad(y, inputs, grad_y.to(y.dtype))]


def _check(actual, inputs, activation, grad_y, tolerance):
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    for tensor, oracle in zip(actual, _outcome(bottleneck_product, wide, activation, grad_y), strict=True):
        assert (tensor.double() - oracle).abs().max() <= tolerance * oracle.abs().max()


# Every kind of kernel is built by Triton for each choice of blocks: half a second each.
KINDS = [*((shape, "silu", True) for shape in (*SHAPES, (4096, 1024, 1024, MAX_RANK))), (SHAPES[0], "none", False)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "activation", "bias"), KINDS, ids=str)
def test_outputs_and_gradients_match_float64(shape, activation, bias, dtype):
    inputs = _inputs(*shape, dtype, bias)
    grad_y = torch.randn(shape[0], shape[2], device="cuda").to(dtype)
    actual = _outcome(fused_bottleneck_product, inputs, activation, grad_y)
    assert [tensor.dtype for tensor in actual] == [dtype] * len(actual)
    _check(actual, inputs, activation, grad_y, TOLERANCE[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_autocast_computes_in_its_dtype_and_keeps_gradients_in_fp32(shape):
    inputs = _inputs(*shape, torch.float32)
    grad_y = torch.randn(shape[0], shape[2], device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        actual = _outcome(fused_bottleneck_product, inputs, "silu", grad_y)
    assert [tensor.dtype for tensor in actual] == [torch.bfloat16] + [torch.float32] * 5
    _check(actual, inputs, "silu", grad_y, 2 * TOLERANCE[torch.bfloat16])


def test_transposed_factors_are_read_right():
    inputs = _inputs(1000, 768, 512, 48, torch.bfloat16)
    turned = [t.detach() if t.ndim == 1 else t.detach().T.contiguous().T for t in inputs]
    turned = [tensor.requires_grad_() for tensor in turned]
    grad_y = torch.ones((), device="cuda").expand(1000, 512)
    actual = _outcome(fused_bottleneck_product, turned, "silu", grad_y)
    _check(actual, inputs, "silu", grad_y, TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_results_repeat_bit_for_bit(dtype):
    inputs = _inputs(*SHAPES[1], dtype)
    grad_y = torch.randn(SHAPES[1][0], SHAPES[1][2], device="cuda")
    first, second = (_outcome(fused_bottleneck_product, inputs, "silu", grad_y) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_cuda_graph_replays_the_kernel():
    inputs = [tensor.detach() for tensor in _inputs(*SHAPES[0], torch.bfloat16)]
    expected = fused_bottleneck_product(*inputs, "silu")  # also chooses the blocks, which no graph can
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fused_bottleneck_product(*inputs, "silu")
    graph.replay()
    assert torch.equal(y, expected)
