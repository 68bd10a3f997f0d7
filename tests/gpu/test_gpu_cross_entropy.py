"""linear_cross_entropy with Liger's kernel on a GPU, against our own chunks and against all logits in float64."""

import pytest
import torch
from torch.nn import functional as F

from comera_dist.ops import cross_entropy
from comera_dist.ops.cross_entropy import chunked_loss_and_gradients, linear_cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="Liger runs on a CUDA device, and there is none"),
]
SIZES = [(4096, 768, 32000), (1000, 96, 32003)]  # a dense head, and a tensor train of middle rank 96
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # relative to the largest entry


@pytest.fixture(autouse=True)
def _liger():
    pytest.importorskip("liger_kernel", reason="these tests compare with Liger's kernel, which needs liger_kernel")


def _inputs(tokens, width, vocab):
    generator = torch.Generator("cuda").manual_seed(20240521)
    hidden = torch.randn(tokens, width, generator=generator, device="cuda").requires_grad_()
    weight = (torch.randn(vocab, width, generator=generator, device="cuda") * width**-0.5).requires_grad_()
    targets = torch.randint(0, vocab, (tokens,), generator=generator, device="cuda")
    targets[::7] = -100
    return hidden, weight, targets


def _outcome(hidden, weight, targets, dtype, implementation=None):
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, implementation=implementation)
    return [loss.detach(), *torch.autograd.grad(loss / len(targets), (hidden, weight))]


def _assert_close(actual, oracle, tolerance):
    for tensor, wanted in zip(actual, oracle, strict=True):
        assert tensor.dtype == torch.float32
        assert (tensor.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_loss_and_gradients_match_float64_and_our_own(size, dtype):
    hidden, weight, targets = _inputs(*size)
    with_liger = _outcome(hidden, weight, targets, dtype)
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    loss = F.cross_entropy(F.linear(*wide), targets, reduction="sum")
    oracle = [loss.detach(), *torch.autograd.grad(loss / len(targets), wide)]
    _assert_close(with_liger, oracle, TOLERANCE[dtype])
    _assert_close(_outcome(hidden, weight, targets, dtype, chunked_loss_and_gradients), oracle, TOLERANCE[dtype])


def test_a_transposed_weight_has_the_right_gradient():
    hidden, weight, targets = _inputs(*SIZES[1])
    V_KV = weight.detach().T.contiguous().requires_grad_()
    expected = _outcome(hidden, weight, targets, torch.bfloat16)
    loss, grad_hidden, grad_V_VK = _outcome(hidden, V_KV.T, targets, torch.bfloat16)
    _assert_close([loss, grad_hidden, grad_V_VK], expected, 1e-3)


def test_liger_is_what_runs_and_no_tensor_holds_all_logits():
    hidden, weight, targets = _inputs(16384, 64, 32000)
    chosen = cross_entropy.select_implementation(hidden.device, torch.bfloat16, len(hidden))
    assert chosen.__name__ == "liger_loss_and_gradients"
    _outcome(hidden, weight, targets, torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _outcome(hidden, weight, targets, torch.bfloat16)
    assert torch.cuda.max_memory_allocated() - before < 16384 * 32000
