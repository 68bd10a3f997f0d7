"""When Liger's kernel is chosen, and that it gives the same results; Triton's interpreter runs `interpreted_*`."""

import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from triton_interpreter import run_interpreted

from comera_dist.ops.cross_entropy import (
    chunked_loss_and_gradients,
    linear_cross_entropy,
    select_implementation,
    without_waiting,
)
from comera_dist.ops.liger import liger_is_installed


@pytest.fixture
def liger(monkeypatch):
    """A stand-in for Liger that can be imported."""
    module = ModuleType("comera_dist.ops.liger_cross_entropy")
    module.liger_loss_and_gradients = object()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    installed = ModuleType("liger_kernel")
    installed.__spec__ = ModuleSpec(installed.__name__, None)
    monkeypatch.setitem(sys.modules, installed.__name__, installed)
    liger_is_installed.cache_clear()
    yield module.liger_loss_and_gradients
    liger_is_installed.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_liger_is_chosen_on_a_gpu(dtype, liger):
    assert select_implementation(torch.device("cuda"), dtype, 8) is liger


@pytest.mark.parametrize(
    ("device", "dtype", "tokens"),
    [("cpu", torch.float32, 8), ("cuda", torch.float64, 8), ("cuda", torch.bfloat16, 0)],
    ids=["on a CPU", "in float64", "without tokens"],
)
def test_liger_is_not_chosen(device, dtype, tokens, liger):
    assert select_implementation(torch.device(device), dtype, tokens) is chunked_loss_and_gradients


def test_liger_is_not_chosen_for_several_blocks(liger):
    assert select_implementation(torch.device("cuda"), torch.bfloat16, 8, blocks=2) is chunked_loss_and_gradients


def test_liger_is_not_chosen_where_it_is_not_installed(liger, monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)  # as if no file of it were found
    assert select_implementation(torch.device("cuda"), torch.bfloat16, 8) is chunked_loss_and_gradients


def test_liger_is_not_chosen_where_nothing_may_wait(liger):
    with without_waiting():
        assert select_implementation(torch.device("cuda"), torch.bfloat16, 8) is chunked_loss_and_gradients
    assert select_implementation(torch.device("cuda"), torch.bfloat16, 8) is liger


def test_liger_is_not_chosen_in_a_model_that_is_compiled(liger, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert select_implementation(torch.device("cuda"), torch.bfloat16, 8) is chunked_loss_and_gradients


def test_liger_under_tritons_interpreter():
    pytest.importorskip("liger_kernel", reason="compares with Liger's kernel, which needs liger_kernel")
    run_interpreted(__file__)


@pytest.fixture
def with_liger():
    """linear_cross_entropy by Liger on CPU tensors."""
    from comera_dist.ops.liger_cross_entropy import liger_loss_and_gradients

    return partial(linear_cross_entropy, implementation=liger_loss_and_gradients)


def _inputs(generator, tokens=37, width=12, vocab=50, dtype=torch.float32):
    hidden = torch.randn(tokens, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, width, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, vocab, (tokens,), generator=generator)


def _same(with_liger, hidden, weight, targets, dtype, assert_close, *options):
    oracle = linear_cross_entropy(hidden.detach().double(), weight.detach().double(), targets)
    assert_close(with_liger(hidden, weight, targets, *options), oracle.float(), dtype)
    actual = torch.autograd.grad(0.3 * with_liger(hidden, weight, targets, *options), (hidden, weight))
    expected = torch.autograd.grad(0.3 * linear_cross_entropy(hidden, weight, targets, *options), (hidden, weight))
    for grad, wanted in zip(actual, expected, strict=True):
        assert grad.dtype == wanted.dtype
        assert_close(grad, wanted, dtype)


@pytest.mark.parametrize("ignored", [slice(0, 0), slice(3, 20), slice(None)], ids=["none", "some", "all"])
@pytest.mark.parametrize("chunk", [1, None])
def interpreted_loss_and_gradients_match_our_own(chunk, ignored, with_liger, generator, assert_close):
    hidden, weight, targets = _inputs(generator)
    targets[ignored] = -100
    _same(with_liger, hidden, weight, targets, torch.float32, assert_close, chunk)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def interpreted_narrow_dtypes_match_our_own(dtype, with_liger, generator, assert_close):
    _same(with_liger, *_inputs(generator, dtype=dtype), torch.bfloat16, assert_close)


def interpreted_a_transposed_weight_has_the_right_gradient(with_liger, generator, assert_close):
    hidden, weight, targets = _inputs(generator)
    V_KV = weight.detach().T.contiguous().requires_grad_()
    expected = torch.autograd.grad(0.3 * linear_cross_entropy(hidden, weight, targets), (hidden, weight))
    actual = torch.autograd.grad(0.3 * with_liger(hidden, V_KV.T, targets), (hidden, V_KV))
    assert_close(actual[0], expected[0])
    assert_close(actual[1].T, expected[1])


def interpreted_autocast_adds_the_gradient_up_in_fp32(with_liger, generator, assert_close):
    """In bf16 a sum of equal numbers, here one a chunk, stops at 256 of them."""
    hidden, weight, _ = _inputs(generator, 1, 1, 300)
    hidden, targets = hidden.detach().expand(300, 1).requires_grad_(), torch.zeros(300, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        loss, oracle = (f(hidden, weight, targets, 1) for f in (with_liger, linear_cross_entropy))
    assert loss.dtype == torch.float32
    for grad, wanted in zip(*(torch.autograd.grad(x, (hidden, weight)) for x in (loss, oracle)), strict=True):
        assert grad.dtype == torch.float32
        assert_close(grad, wanted, torch.bfloat16)


def interpreted_only_wanted_gradients_are_returned(with_liger, generator, assert_close):
    hidden, weight, targets = _inputs(generator)
    with_liger(hidden.detach(), weight, targets).backward()
    assert weight.grad is not None
    weight.grad = None
    with_liger(hidden, weight.detach(), targets).backward()
    assert hidden.grad is not None
    assert weight.grad is None
    with torch.no_grad():
        assert_close(with_liger(hidden, weight, targets), linear_cross_entropy(hidden, weight, targets))


def interpreted_a_second_backward_gives_the_same(with_liger, generator):
    hidden, weight, targets = _inputs(generator)
    loss = 0.3 * with_liger(hidden, weight, targets)
    first, second = (torch.autograd.grad(loss, (hidden, weight), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
