"""The bottleneck product against its definition; functions `interpreted_*` run where Triton interprets the kernel."""

import subprocess
import sys

import pytest
import torch
from triton_interpreter import run_interpreted

from benchmarks.kernels.bottleneck import bottleneck_product
from comera_dist.errors import ConfigError

SHAPES = [  # leading dimensions of x, N, M, R
    ((5,), 7, 9, 3),
    ((2, 3), 16, 32, 16),
    ((), 5, 4, 2),
    ((1,), 1, 1, 1),
    ((70,), 130, 140, 17),  # more than one block each of tokens, N and M
    ((65,), 33, 65, 256),  # two slices of the rank in backward
    ((0,), 4, 5, 3),
    ((2, 0), 4, 5, 3),
    ((4,), 3, 5, 0),
]
# Relative to the largest entry; twice that of rounding for bf16, of which Triton's interpreter cuts the last bits off.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1.5e-3, torch.bfloat16: 2e-2}


def _inputs(generator, leading, N, M, R, dtype=torch.float32, bias=True):
    shapes = [(*leading, N), (N, R), (R,), (R, M), (M,)][: 5 if bias else 4]
    scales = [1, N**-0.5, 1, max(1, R) ** -0.5, 1]
    tensors = [torch.randn(s, generator=generator) * scale for s, scale in zip(shapes, scales, strict=False)]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def _outcome(product, inputs, activation, grad_y):
    """y and the gradients of all inputs."""
    x, A, gate, B, *bias = inputs
    y = product(x, A, gate, B, *(bias or [None]), activation)
    return [y, *torch.autograd.grad(y, inputs, grad_y.to(y.dtype))]


def _check(product, inputs, activation, grad_y, tolerance):
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    for actual, oracle in zip(
        _outcome(product, inputs, activation, grad_y),
        _outcome(bottleneck_product, wide, activation, grad_y),
        strict=True,
    ):
        assert actual.shape == oracle.shape
        if oracle.numel():
            largest = max(1e-6, oracle.detach().abs().max())
            assert (actual.detach().double() - oracle.detach()).abs().max() <= tolerance * largest


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_follows_its_definition(shape, activation, generator, assert_close):
    x, A, gate, B, bias = _inputs(generator, *shape, torch.float64)
    h = torch.einsum("...n,nr->...r", x, A)
    act = {"none": torch.ones_like(h), "silu": torch.sigmoid(h)}[activation]
    oracle = torch.einsum("...r,...r,r,rm->...m", h, act, gate, B) + bias
    assert_close(bottleneck_product(x, A, gate, B, bias, activation), oracle.to(x.dtype))


def test_gradients_in_float64(generator):
    inputs = _inputs(generator, (3,), 4, 5, 2, torch.float64)
    assert torch.autograd.gradcheck(lambda *t: bottleneck_product(*t, "silu"), inputs)


def test_bf16_inputs_and_autocast_give_bf16(generator, assert_close):
    inputs = _inputs(generator, (5,), 7, 9, 3)
    oracle = bottleneck_product(*inputs, "silu")
    with torch.autocast("cpu", torch.bfloat16):
        autocast = bottleneck_product(*inputs, "silu")
    narrow = bottleneck_product(inputs[0].bfloat16(), *inputs[1:], "silu")
    for y in (autocast, narrow):
        assert y.dtype == torch.bfloat16
        assert_close(y, oracle, torch.bfloat16)


def test_the_package_works_without_triton_and_liger():
    code = (
        "import sys; sys.modules |= {'triton': None, 'liger_kernel': None}; import torch;"
        "from benchmarks.kernels.bottleneck import bottleneck_product as p; import comera_dist.models.decoder.model;"
        "assert p(torch.ones(1, 2), torch.ones(2, 1), torch.ones(1), torch.ones(1, 3)).tolist() == [[2.0] * 3]"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_kernel_under_tritons_interpreter():
    run_interpreted(__file__)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_smallest_blocks_fit_any_gpu_at_the_largest_rank(dtype):
    """Compiles both kernels for compute capability 8.9, whose 99 KiB of shared memory are the least of current ones."""
    pytest.importorskip("triton", reason="the kernel needs triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from benchmarks.kernels import bottleneck_kernel as kernels

    constants = {"SILU": True, "PADDED_R": kernels.MAX_RANK, "BLOCK_T": kernels.BACKWARD_BLOCK_T, "BLOCK_R": 128}
    for kernel in (kernels._forward_kernel, kernels._backward_kernel):
        config = kernel.configs[-1]
        values = constants | config.kwargs
        types = {name: _type_of(name, dtype) for name in kernel.fn.arg_names}
        source = ASTSource(kernel.fn, types, {name: values[name] for name in types if types[name] == "constexpr"})
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        compiled = compile(source, target=GPUTarget("cuda", 89, 32), options=options)
        assert 0 < compiled.metadata.shared <= 99 * 2**10


def _type_of(argument, dtype):
    if argument == "SILU" or argument.startswith(("PADDED", "BLOCK")):
        return "constexpr"
    if argument in ("gate_R", "bias_M", "grad_gate_PR"):
        return "*fp32"
    return f"*{dtype}" if "_" in argument and argument.rsplit("_", 1)[1].isupper() else "i32"


@pytest.mark.parametrize("padded", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_rank_has_blocks_to_choose_from(dtype, padded):
    pytest.importorskip("triton", reason="the kernel needs triton")
    from benchmarks.kernels.bottleneck_kernel import FORWARD_CONFIGS, fitting_configs

    fitting = fitting_configs(FORWARD_CONFIGS, {"x_TN": torch.empty(1, dtype=dtype)}, PADDED_R=padded)
    assert fitting
    assert all(config.kwargs["BLOCK_T"] * padded <= 2**15 / dtype.itemsize for config in fitting)


@pytest.fixture
def fused(monkeypatch):
    """The kernel, in an interpreter whose dot product does not take the bits of bf16 for integers, as Triton's does."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    from benchmarks.kernels.bottleneck_kernel import fused_bottleneck_product

    dot = InterpreterBuilder.create_dot

    def widened_dot(self, left, right, *rest):
        left, right = (self.cast_impl(h, tl.float32) if h.dtype.scalar == tl.bfloat16 else h for h in (left, right))
        return dot(self, left, right, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", widened_dot)
    return fused_bottleneck_product


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def interpreted_outputs_and_gradients_match_float64(shape, activation, bias, fused, generator):
    inputs = _inputs(generator, *shape, bias=bias)
    _check(fused, inputs, activation, torch.randn(*shape[0], shape[2], generator=generator), TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("shape", [SHAPES[0], *SHAPES[3:6]], ids=str)
def interpreted_narrow_dtypes_match_float64(shape, activation, dtype, fused, generator):
    inputs = _inputs(generator, *shape, dtype)
    grad_y = torch.randn(*shape[0], shape[2], generator=generator).to(dtype)
    outcome = _outcome(fused, inputs, activation, grad_y)
    assert [tensor.dtype for tensor in outcome] == [dtype] * len(outcome)
    _check(fused, inputs, activation, grad_y, TOLERANCE[dtype])


@pytest.mark.parametrize("choice", range(4))
def interpreted_every_choice_of_blocks_gives_the_same(choice, fused, generator, monkeypatch):
    from benchmarks.kernels import bottleneck_kernel as kernels

    backward = kernels.BACKWARD_CONFIGS[choice % len(kernels.BACKWARD_CONFIGS)]
    monkeypatch.setattr(kernels._forward_kernel, "configs", [kernels.FORWARD_CONFIGS[choice]])
    monkeypatch.setattr(kernels._backward_kernel, "configs", [backward])
    inputs = _inputs(generator, (150,), 70, 140, 40)
    _check(fused, inputs, "silu", torch.randn(150, 140, generator=generator), TOLERANCE[torch.float32])


def interpreted_views_of_any_strides_are_read_right(fused, generator):
    wide_x, A, gate, B, bias = (t.detach() for t in _inputs(generator, (3, 5), 14, 9, 4))
    x, A, B = wide_x[:, 1:4, ::2], A[::2].T.contiguous().T, B.T.contiguous().T
    inputs = [t.requires_grad_() for t in (x, A, gate[:1].expand(4), B, bias[:1].expand(9))]
    assert not any(t.is_contiguous() for t in inputs)
    _check(fused, inputs, "silu", torch.ones(()).expand(3, 3, 9), TOLERANCE[torch.float32])


def interpreted_autocast_computes_in_its_dtype_and_keeps_gradients_in_fp32(fused, generator):
    inputs = _inputs(generator, (70,), 33, 40, 17)
    grad_y = torch.randn(70, 40, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        y, *grads = _outcome(fused, inputs, "silu", grad_y)
        _check(fused, inputs, "silu", grad_y, TOLERANCE[torch.bfloat16])
    assert y.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 for grad in grads)


def interpreted_backward_computes_as_forward_did(fused, generator):
    inputs = _inputs(generator, (70,), 33, 40, 17)
    y, oracle = fused(*inputs, "silu"), bottleneck_product(*inputs, "silu")
    expected = torch.autograd.grad(oracle.sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(y.sum(), inputs)
    for grad, wanted in zip(actual, expected, strict=True):
        assert (grad - wanted).abs().max() <= 2 * TOLERANCE[torch.float32] * wanted.abs().max()


def interpreted_backward_keeps_the_inputs_and_the_intermediate(fused, generator):
    inputs = _inputs(generator, (4, 10), 24, 30, 5)
    own = {tensor.data_ptr() for tensor in inputs[:4]}
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        fused(*inputs, "silu")
    assert own < kept.keys()
    assert [tuple(tensor.shape) for pointer, tensor in kept.items() if pointer not in own] == [(40, 5)]


@pytest.mark.parametrize("wanted", range(5))
def interpreted_only_wanted_gradients_are_made(wanted, fused, generator):
    inputs = [tensor.detach().requires_grad_(i == wanted) for i, tensor in enumerate(_inputs(generator, (5,), 7, 9, 3))]
    fused(*inputs, "silu").sum().backward()
    assert [tensor.grad is not None for tensor in inputs] == [i == wanted for i in range(5)]


def interpreted_what_the_kernel_cannot_do_is_one_sentence(fused, generator):
    with pytest.raises(ConfigError, match="rank 257 is above 256"):
        fused(*_inputs(generator, (2,), 3, 4, 257))
    with pytest.raises(ConfigError, match=r"no torch\.float64"):
        fused(*_inputs(generator, (2,), 3, 4, 2, torch.float64))
    with pytest.raises(KeyError):
        fused(*_inputs(generator, (2,), 3, 4, 2), "gelu")
