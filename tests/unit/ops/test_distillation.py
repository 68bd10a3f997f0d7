"""The loss with a teacher against all logits of torch."""

import pytest
import torch
from torch.nn import functional as F

from comera_dist.ops.cross_entropy import linear_cross_entropy
from comera_dist.ops.distillation import Lesson, taught_by

TOKENS, WIDTH, TEACHER_WIDTH, VOCAB = 23, 6, 9, 31


def drawn(generator, dtype=torch.float32):
    """Hidden states and weight of the student, of the teacher, and targets, of which some are ignored."""
    sizes = (TOKENS, WIDTH), (VOCAB, WIDTH), (TOKENS, TEACHER_WIDTH), (VOCAB, TEACHER_WIDTH)
    tensors = [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    targets[3:7] = -100
    return *(tensor.requires_grad_() for tensor in tensors[:2]), *tensors[2:], targets


def oracle(hidden, weight, teacher_hidden, teacher_weight, targets, share):
    logits, predicted = F.linear(hidden, weight), F.linear(teacher_hidden, teacher_weight).softmax(-1)
    hard = F.cross_entropy(logits, targets, reduction="none", ignore_index=-100)
    soft = F.cross_entropy(logits, predicted, reduction="none").where(targets != -100, 0)
    return ((1 - share) * hard + share * soft).sum()


@pytest.mark.parametrize("chunk", [1, 5, None])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_loss_and_gradients_match_all_logits(chunk, share, generator, assert_close):
    hidden, weight, teacher_hidden, teacher_weight, targets = drawn(generator)
    lesson = Lesson(teacher_hidden, teacher_weight, share)
    loss = linear_cross_entropy(hidden, weight, targets, chunk, taught_by(lesson))
    expected = oracle(hidden, weight, teacher_hidden, teacher_weight, targets, share)
    assert_close(loss, expected)
    assert not torch.isclose(loss, linear_cross_entropy(hidden, weight, targets))
    found, wanted = (torch.autograd.grad(3 * x, (hidden, weight)) for x in (loss, expected))
    for actual, gradient in zip(found, wanted, strict=True):
        assert_close(actual, gradient)


def test_a_teacher_may_store_its_weight_in_blocks(generator, assert_close):
    hidden, weight, teacher_hidden, _, targets = drawn(generator)
    blocks = [torch.randn(size, generator=generator) for size in ((10, 5), (21, 4))]
    lesson = Lesson(teacher_hidden, blocks, 0.5)
    loss = linear_cross_entropy(hidden, weight, targets, implementation=taught_by(lesson))
    assert_close(loss, oracle(hidden, weight, teacher_hidden, torch.block_diag(*blocks), targets, 0.5))


def test_bf16_autocast_keeps_both_softmaxes_in_fp32(generator, assert_close):
    hidden, weight, teacher_hidden, teacher_weight, targets = drawn(generator)
    with torch.autocast("cpu", torch.bfloat16):
        lesson = Lesson(teacher_hidden, teacher_weight, 0.5)
        loss = linear_cross_entropy(hidden, weight, targets, implementation=taught_by(lesson))
    expected = oracle(hidden, weight, teacher_hidden, teacher_weight, targets, 0.5)
    assert loss.dtype == torch.float32
    found, wanted = (torch.autograd.grad(x, (hidden, weight)) for x in (loss, expected))
    for actual, gradient in zip((loss, *found), (expected, *wanted), strict=True):
        assert_close(actual, gradient, torch.bfloat16)


def test_gradients_in_float64(generator):
    hidden, weight, *teacher, targets = drawn(generator, torch.float64)
    taught = taught_by(Lesson(*teacher, 0.4))
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, targets, 7, taught), (hidden, weight))
