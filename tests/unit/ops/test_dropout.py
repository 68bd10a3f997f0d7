"""Dropout on a CPU against masks that are read number by number, and attention with it against its formula."""

import math

import pytest
import torch
from torch.nn import functional as F

from comera_dist.ops.dropout import LEVELS, Dropout, attention, dropout

SHAPE = (3, 5, 7)  # 105 numbers, one more than 26 words of four
GENERATOR = torch.Generator().manual_seed(1)


def kept(shape, p):
    """The mask that the next call draws, from its random words as Python's integers."""
    state, count = torch.get_rng_state(), math.prod(shape)
    words = [int(word) for word in torch.randint(-(2**63), 2**63 - 1, (-(-count // 4),))]
    torch.set_rng_state(state)
    bits = [(word >> 16 * place) % LEVELS for word in words for place in range(4)]  # the lowest come first
    signed = [bit - LEVELS if bit >= LEVELS // 2 else bit for bit in bits[:count]]
    return torch.tensor([number + LEVELS // 2 >= round(p * LEVELS) for number in signed]).view(shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3, 0.999])
def test_numbers_are_dropped_by_sixteen_bits_each(p, dtype):
    x = torch.randn(SHAPE, generator=GENERATOR).to(dtype).requires_grad_()
    grad = torch.randn(SHAPE, generator=GENERATOR).to(dtype)
    factor = kept(SHAPE, p).double() / (1 - round(p * LEVELS) / LEVELS)
    y = dropout(x, p)
    y.backward(grad)
    near = {"rtol": torch.finfo(dtype).eps, "atol": 0.0}
    torch.testing.assert_close(y.detach().double(), x.detach().double() * factor, **near)
    torch.testing.assert_close(x.grad.double(), grad.double() * factor, **near)


def test_shares_and_means_are_those_of_p():
    y = dropout(torch.ones(1000, 1000), 0.1)
    assert float((y == 0).float().mean()) == pytest.approx(0.1, abs=0.002)  # six standard deviations
    assert float(y.mean()) == pytest.approx(1, abs=0.002)


def test_the_ends_of_the_range_and_transposed_inputs():
    x = torch.randn(6, 4, generator=GENERATOR).T
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(4, 6))
    mask = kept((4, 6), 0.5)
    assert torch.equal(dropout(x, 0.5), x * mask * 2)


def test_the_module_drops_in_training_alone():
    x, module = torch.ones(100), Dropout(0.5)
    assert torch.equal(module.eval()(x), x)
    assert not torch.equal(module.train()(x), x)


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.3])
def test_attention_is_the_formula(p):
    q, k, v = (torch.randn(2, 3, 5, 8, generator=GENERATOR, requires_grad=True) for _ in range(3))
    keep = torch.tensor([[True] * 5, [True, True, True, False, False]]).view(2, 1, 1, 5)
    factor = kept((2, 3, 5, 5), p).double() / (1 - round(p * LEVELS) / LEVELS)
    y = attention(q, k, v, keep, p)
    scores = torch.einsum("bhse,bhke->bhsk", q.double(), k.double()) / math.sqrt(8)
    weights = torch.softmax(scores.masked_fill(~keep, -math.inf), -1)
    expected = torch.einsum("bhsk,bhke->bhse", weights * factor, v.double())
    near = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(y.double(), expected, **near)
    grad = torch.randn(y.shape, generator=GENERATOR)
    found = torch.autograd.grad(y, (q, k, v), grad)
    wanted = torch.autograd.grad(expected, (q, k, v), grad.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **near)
    if round(p * LEVELS) == 0:
        torch.testing.assert_close(y, F.scaled_dot_product_attention(q, k, v, attn_mask=keep), **near)
