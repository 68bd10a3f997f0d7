import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import plan_tt
from comera_dist.ops.cross_entropy import linear_cross_entropy


def _inputs(generator, tokens=37, width=12, vocab=50, dtype=torch.float32):
    hidden = torch.randn(tokens, width, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, width, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, vocab, (tokens,), generator=generator)
    return hidden, weight, targets


def _oracle(hidden, weight, targets):
    return F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum", ignore_index=-100)


@pytest.mark.parametrize("chunk", [1, 5, 37, 1000, None])
@pytest.mark.parametrize("ignored", [slice(0, 0), slice(3, 20), slice(None)], ids=["none", "some", "all"])
def test_loss_and_gradients_match_full_logits(chunk, ignored, generator, assert_close):
    hidden, weight, targets = _inputs(generator)
    targets[ignored] = -100
    loss = linear_cross_entropy(hidden, weight, targets, chunk)
    oracle = _oracle(hidden, weight, targets)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    assert_close(loss, oracle)
    for actual, expected in zip(
        torch.autograd.grad(3 * loss, (hidden, weight)), torch.autograd.grad(3 * oracle, (hidden, weight)), strict=True
    ):
        assert_close(actual, expected)
    with torch.no_grad():
        assert_close(linear_cross_entropy(hidden, weight, targets, chunk), oracle)


@pytest.mark.parametrize("chunk", [5, None])
def test_blocks_of_a_weight_are_those_of_a_block_diagonal_one(chunk, generator, assert_close):
    hidden, _, targets = _inputs(generator)
    targets[:4] = -100
    blocks = [torch.randn(size, generator=generator, requires_grad=True) for size in ((8, 6), (12, 4), (30, 2))]
    loss, oracle = (
        linear_cross_entropy(hidden, blocks, targets, chunk),
        _oracle(hidden, torch.block_diag(*blocks), targets),
    )
    assert_close(loss, oracle)
    inputs = (hidden, *blocks)
    for actual, expected in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(oracle, inputs), strict=True):
        assert_close(actual, expected)


def test_bf16_autocast_keeps_softmax_and_weight_gradient_in_fp32(generator, assert_close):
    hidden, weight, targets = _inputs(generator, tokens=300)
    oracle = torch.autograd.grad(_oracle(hidden, weight, targets), (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, 64)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert (loss.dtype, grads[0].dtype, grads[1].dtype) == (torch.float32,) * 3
    assert_close(loss, _oracle(hidden, weight, targets), torch.bfloat16)
    for actual, expected in zip(grads, oracle, strict=True):
        assert_close(actual, expected, torch.bfloat16)


def test_gradients_in_float64(generator):
    hidden, weight, targets = _inputs(generator, tokens=7, width=4, vocab=9, dtype=torch.float64)
    targets[2] = -100
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, targets, 3), (hidden, weight))


def test_only_wanted_gradients_are_returned(generator):
    hidden, weight, targets = _inputs(generator)
    linear_cross_entropy(hidden.detach(), weight, targets).backward()
    assert weight.grad is not None
    weight.grad = None
    linear_cross_entropy(hidden, weight.detach(), targets).backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_huge_logits_stay_finite(generator, assert_close):
    hidden, weight, targets = _inputs(generator)
    scaled = (hidden * 1e4).detach().requires_grad_()
    loss = linear_cross_entropy(scaled, weight, targets)
    loss.backward()
    assert_close(loss, _oracle(scaled, weight, targets))
    assert torch.isfinite(scaled.grad).all()


class Sizes(TorchDispatchMode):
    """Records the size of each tensor that is made within its block."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.sizes.extend([result.numel()] if isinstance(result, torch.Tensor) else [])
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_holds_all_logits(dtype, generator):
    tokens, vocab, chunk = 512, 400, 32
    hidden, weight, targets = _inputs(generator, tokens, 8, vocab)
    with Sizes() as seen, torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        linear_cross_entropy(hidden, weight, targets, chunk).backward()
    assert max(seen.sizes) == chunk * vocab


def test_the_default_chunk_holds_a_few_million_logits(generator):
    hidden, weight, targets = _inputs(generator, tokens=300, width=2, vocab=50_000)
    with Sizes() as seen:
        linear_cross_entropy(hidden, weight, targets)
    assert 1_000_000 < max(seen.sizes) < 5_000_000


def test_a_tensor_train_head_pays_the_rank_per_vocabulary_entry(generator, assert_close):
    head = TTLinear(plan_tt(12, 50, 2, 4), generator=generator)
    hidden, _, targets = _inputs(generator)
    U_NR, V_RV = head.factors()
    loss = linear_cross_entropy(hidden @ U_NR, V_RV.T, targets, 8)
    oracle = _oracle(hidden, head.to_dense(), targets)
    assert_close(loss, oracle)
    parameters = [hidden, *head.parameters()]
    expected = torch.autograd.grad(oracle, parameters)
    for actual, wanted in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
        assert_close(actual, wanted)


def test_the_scale_of_the_loss_is_not_rounded_with_gradients_in_bf16():
    """1 / 3000 is 0.13% larger in bf16, and so was the gradient of every parameter below the head."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3000, 16, generator=generator).bfloat16().requires_grad_()
    weight, targets = torch.randn(11, 16, generator=generator), torch.randint(11, (3000,), generator=generator)
    (whole,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden)
    (mean,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets) / 3000, hidden)
    ratios = 3000 * mean.double() / whole.double()
    assert ratios[whole != 0].mean().item() == pytest.approx(1, abs=2e-4)
