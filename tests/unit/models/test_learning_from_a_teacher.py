"""The loss of a model that learns from another one, against all logits of both."""

import pytest
import torch
from support import FACTS, TINY, VOCAB, WORKLOADS
from torch.nn import functional as F

from comera_dist.config.reader import read_config
from comera_dist.models.decoder.plan import DecoderFacts
from comera_dist.models.encoder.plan import EncoderFacts
from comera_dist.models.family import build_model, plan_model

SHARE = 0.3
DECODERS = {
    "tensor train": [],
    "tied low rank": ["model.format=low_rank", "model.tie_embeddings=true"],
    "dense": ["model.format=dense", "model.d_model=8"],
}


def build(seed, *overrides, run=TINY, facts=DecoderFacts(VOCAB)):  # noqa: B008 (facts do not change)
    """A model whose predictions are far from uniform."""
    config, generator = read_config(None, [*run, *overrides]), torch.Generator().manual_seed(seed)
    model = build_model(config.model, plan_model(config, facts), generator)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.train()


def batch():
    generator = torch.Generator().manual_seed(3)
    tokens, targets = (torch.randint(VOCAB, (2, 11), generator=generator) for _ in range(2))
    targets[0, 2:4] = -100
    return tokens, targets


@pytest.mark.parametrize("teacher", DECODERS)
@pytest.mark.parametrize("student", DECODERS)
def test_a_share_of_the_loss_is_that_with_the_teachers_predictions(student, teacher, assert_close):
    model, other, (tokens, targets) = build(1, *DECODERS[student]), build(2, *DECODERS[teacher]).eval(), batch()
    logits, predicted = model(tokens).flatten(0, 1), other(tokens).flatten(0, 1).softmax(-1).detach()
    hard = F.cross_entropy(logits, targets.flatten(), reduction="none")
    soft = F.cross_entropy(logits, predicted, reduction="none").where(targets.flatten() != -100, 0)
    expected = ((1 - SHARE) * hard + SHARE * soft).sum()
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    model.learn_from(other, SHARE)
    loss = model(tokens, targets)
    assert_close(loss, expected)
    for actual, wanted in zip(torch.autograd.grad(loss, list(model.parameters())), gradients, strict=True):
        assert_close(actual, wanted)


def test_a_teacher_reads_the_same_documents(assert_close):
    model, other, (tokens, targets) = build(1), build(2).eval(), batch()
    starts = torch.tensor([[0] * 4 + [4] * 7, [0] * 11])
    model.learn_from(other, 1.0)
    predicted = other(tokens, starts, None).flatten(0, 1).softmax(-1)
    losses = F.cross_entropy(model(tokens, starts, None).flatten(0, 1), predicted, reduction="none")
    assert_close(model(tokens, starts, targets), losses.where(targets.flatten() != -100, 0).sum())


def test_a_validation_asks_no_teacher_and_the_teacher_is_no_part_of_the_model():
    model, (tokens, targets) = build(1), batch()
    names, alone = set(model.state_dict()), model.eval().measure(tokens, targets)["loss"]
    other = build(2)
    model.learn_from(other, 1.0)
    assert torch.equal(model.measure(tokens, targets)["loss"], alone)
    assert set(model.state_dict()) == names
    model.train()(tokens, targets).backward()
    assert all(parameter.grad is None for parameter in other.parameters())


@pytest.mark.parametrize("head", ["masked_lm", "classifier"])
def test_an_encoder_learns_likewise(head, assert_close):
    facts = EncoderFacts(FACTS.vocab_size, FACTS.classes if head == "classifier" else None)
    model, other = (build(seed, run=WORKLOADS[head], facts=facts) for seed in (1, 2))
    generator, other = torch.Generator().manual_seed(3), other.eval()
    tokens = torch.randint(1, FACTS.vocab_size, (4, 9), generator=generator)
    inputs = [tokens, torch.zeros_like(tokens)]
    inputs += [torch.randint(9, (4, 2), generator=generator)] if head == "masked_lm" else []
    logits, predicted = model(*inputs).flatten(0, -2), other(*inputs).flatten(0, -2).softmax(-1).detach()
    targets = torch.randint(logits.shape[1], (len(logits),), generator=generator)
    targets[1] = -100
    hard = F.cross_entropy(logits, targets, reduction="none")
    soft = F.cross_entropy(logits, predicted, reduction="none").where(targets != -100, 0)
    expected = ((1 - SHARE) * hard + SHARE * soft).sum()
    gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    model.learn_from(other, SHARE)
    loss = model(*inputs, targets.view(4, 2) if head == "masked_lm" else targets)
    assert_close(loss, expected)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    for actual, wanted in zip(found, gradients, strict=True):
        assert (actual is None) == (wanted is None)
        if wanted is not None:  # that of a key's bias is zero but for rounding
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
