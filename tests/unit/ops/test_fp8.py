"""FP8 products against rounding number by number, torch's own FP8 product, and layers of all formats."""

import pytest
import torch
from support import FACTS, TINY, VOCAB

from comera_dist.config.reader import read_config
from comera_dist.formats.block_train import plan_blocks
from comera_dist.formats.tensor_train.train_shapes import TTMShape
from comera_dist.models.family import build_model, plan_model
from comera_dist.ops import fp8
from comera_dist.ops.fp8 import FORWARD, GRADIENT, emulated, fp8_linear, quantize
from comera_dist.ops.products import fp8_products, linear, multiply
from comera_dist.runtime.forward import compute_precision

FORMATS = [FORWARD, GRADIENT]


def normal(*shape, size=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * size


def nearest(x, dtype):
    """Each number's nearest one of the 256 of `dtype`; between two, the one with an even last bit."""
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(dtype).double()
    codes, values = codes[values.isfinite()], values[values.isfinite()]
    distances = (x.double()[..., None] - values).abs() + 1e-30 * (codes % 2)
    return values[distances.argmin(-1)]


def rounded(x, dtype):
    """The matrix that `quantize` stands for, number by number."""
    scale = 2.0 ** torch.floor(torch.log2(x.abs().max().double() / torch.finfo(dtype).max) + 1)
    return nearest(x / scale, dtype) * scale


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_quantizing_takes_the_nearest_number(dtype, size):
    x = normal(16, 24, size=size)
    values, scale = quantize(x, dtype)
    assert torch.frexp(scale).mantissa == 0.5  # a power of two
    assert 0.5 <= values.float().abs().max() / torch.finfo(dtype).max <= 1
    assert torch.equal(values.double() * scale, rounded(x, dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_zeros_stay_and_bad_numbers_are_seen(dtype):
    zeros = quantize(torch.zeros(16, 16), dtype)
    assert torch.equal(zeros.values.float(), torch.zeros(16, 16))
    assert zeros.scale.isfinite()
    for bad in (float("inf"), float("nan")):
        x = normal(16, 16)
        x[3, 4] = bad
        values, scale = quantize(x, dtype)
        assert (values.float() * scale).isnan().all()


@pytest.mark.parametrize("shape", [(0, 24), (3, 0, 24)])
def test_no_tokens_make_no_results_and_gradients_of_zero(shape):
    x, weight = torch.zeros(shape, requires_grad=True), normal(8, 24).requires_grad_()
    y = fp8_linear(x, weight, torch.bfloat16)
    assert (y.shape, y.dtype) == ((*shape[:-1], 8), torch.bfloat16)
    y.sum().backward()
    assert x.grad.shape == shape
    assert torch.equal(weight.grad, torch.zeros(8, 24))


@pytest.mark.parametrize("left", FORMATS)
@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16])
def test_the_emulation_is_the_fp8_product_of_torch_bit_for_bit(left, result):
    a, b = quantize(normal(48, 32, size=1e-4), left), quantize(normal(64, 32), FORWARD)
    product = torch._scaled_mm(a.values, b.values.T, a.scale, b.scale, out_dtype=result)
    assert torch.equal(emulated(a, b, result), product)


def test_forward_and_backward_are_those_of_rounded_matrices():
    x, weight, grad = normal(2, 16, 32), normal(48, 32), normal(2, 16, 48)
    x.requires_grad_(), weight.requires_grad_()
    y = fp8_linear(x, weight, torch.float32)
    y.backward(grad)
    X, W, G = rounded(x.detach().view(-1, 32), FORWARD), rounded(weight.detach(), FORWARD), rounded(grad, GRADIENT)
    G = G.view(-1, 48)
    close = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(y.detach().view(-1, 48).double(), X @ W.T, **close)
    torch.testing.assert_close(x.grad.view(-1, 32).double(), G @ W, **close)
    torch.testing.assert_close(weight.grad.double(), G.T @ X, **close)


@pytest.mark.parametrize("sides", [(16, 32, 48), (5, 7, 3), (1, 33, 16), (32, 64, 1)])
def test_a_device_with_fp8_products_multiplies_as_the_emulation_does(sides, monkeypatch):
    rows, inputs, outputs = sides
    x, weight, grad = normal(rows, inputs), normal(outputs, inputs), normal(rows, outputs)
    found, sizes, product = [], [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **more: (sizes.extend(args[:2]), product(*args, **more))[1])
    for has_products in (False, True):  # torch has an FP8 product for CPUs, too
        monkeypatch.setattr(fp8, "has_fp8_products", lambda device, has_products=has_products: has_products)
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = fp8_linear(*leaves, torch.bfloat16)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, grad.bfloat16())])
    assert len(sizes) == 6
    assert all(side % 16 == 0 for matrix in sizes for side in matrix.shape)  # cuBLAS has no product with one row
    for emulation, result in zip(*found, strict=True):
        assert emulation.dtype == result.dtype
        torch.testing.assert_close(result, emulation, rtol=2**-8, atol=1e-6)  # a last bit of bf16, by other sums


def test_products_are_in_fp8_within_the_block_alone():
    x, weight, bias = normal(2, 9, 32), normal(24, 32), normal(24)
    with fp8_products():
        in_fp8 = linear(x, weight)
        assert torch.equal(linear(x, weight, bias), in_fp8 + bias)
        assert torch.equal(multiply(x, weight.T), in_fp8)
    assert in_fp8.shape == (2, 9, 24)
    assert torch.equal(linear(x, weight), x @ weight.T)
    assert not torch.equal(in_fp8, x @ weight.T)


@pytest.mark.parametrize("format", ["dense", "tensor", "low_rank", "bottleneck", "sltrain", "shared"])
def test_layers_of_all_formats_multiply_in_fp8(format):
    sizes = ["model.d_model=128", "model.d_ff=256"]
    others = "embedding: dense, head: dense" if format == "shared" else "embedding: dense"  # only blocks share
    config = read_config(None, [*TINY, *sizes, f"model.format={{rest: {format}, {others}}}"])
    model = build_model(config.model, plan_model(config, FACTS), torch.Generator().manual_seed(0))
    tokens = torch.randint(5, VOCAB, (4, 16), generator=torch.Generator().manual_seed(1))
    losses, gradients = {}, {}
    for precision in ("fp32", "bf16", "fp8"):
        with compute_precision(torch.device("cpu"), precision):
            loss = model(tokens, tokens)
        losses[precision] = loss.item()
        gradients[precision] = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    assert losses["fp8"] == pytest.approx(losses["fp32"], rel=1e-2)
    errors = {
        precision: sum((g - exact).square().sum() for g, exact in zip(found, gradients["fp32"], strict=True)).sqrt()
        for precision, found in gradients.items()
    }
    size = sum(g.square().sum() for g in gradients["fp32"]).sqrt()
    assert 2 * errors["bf16"] < errors["fp8"] < 0.4 * size  # E5M2 rounds to two bits


def test_tables_are_made_of_cores_in_fp8():
    plan = TTMShape(60, 20, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1))
    table, in_fp8 = (plan.build(std=1.0, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    for core in in_fp8.cores:
        core.data = rounded(core.detach(), FORWARD).float()
    ids, grad = torch.tensor([0, 7, 59, 7]), normal(4, 20)
    with compute_precision(torch.device("cpu"), "fp8"):
        rows = table(ids)
    assert torch.equal(rows, in_fp8(ids))
    assert not torch.equal(rows, table(ids))
    rows.backward(grad)
    in_fp8(ids).backward(grad)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(table.cores, in_fp8.cores, strict=True))


def test_block_trains_multiply_in_fp8_where_they_are_merged():
    layer = plan_blocks(64, 64, rank=2).build(std=0.1, generator=torch.Generator().manual_seed(0))
    x = normal(32, 64)
    with compute_precision(torch.device("cpu"), "bf16"):
        in_bf16 = {path: layer.multiply(x, path) for path in ("weight", "blocks")}
    with compute_precision(torch.device("cpu"), "fp8"):
        assert torch.equal(layer.multiply(x, "blocks"), in_bf16["blocks"])
        assert torch.equal(layer.multiply(x, "weight"), fp8_linear(x, layer.to_dense(), torch.bfloat16))
