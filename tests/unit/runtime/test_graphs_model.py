"""A forward and backward pass of the model asks the device nothing, so that it can be captured."""

import pytest
import torch
from fake_gpu import fake_gpu
from support import TINY, VOCAB
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)

from comera_dist.config.reader import read_config
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.ops.cross_entropy import without_waiting

FORMATS = {
    "dense": "dense",
    "tensor": "{embedding: dense}",
    "tensor_with_embedding": "tensor",
}


def passes(function):
    """Runs the function on tokens and targets (2, 16) without values."""
    with fake_gpu(), without_waiting():
        tokens, targets = (torch.empty(2, 16, dtype=torch.long) for _ in range(2))
        assert tokens.device.type == "cuda"
        function(tokens, targets)


@pytest.mark.parametrize("is_packed", [False, True], ids=["joined", "packed"])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_decoder_asks_the_device_nothing(kind, is_packed):
    config = read_config(None, [*TINY, f"model.format={FORMATS[kind]}"])
    model = Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0))

    def forward_and_backward(tokens, targets):
        starts = [torch.zeros_like(tokens)] * is_packed
        gradients = torch.autograd.grad(model(tokens, *starts, targets), list(model.parameters()))
        assert all(isinstance(gradient, FakeTensor) for gradient in gradients)

    passes(forward_and_backward)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (lambda tokens, targets: tokens.max().item(), DataDependentOutputException),
        (lambda tokens, targets: int(tokens.sum()), DataDependentOutputException),
        (lambda tokens, targets: 1 if (tokens > 3).any() else 0, DataDependentOutputException),
        (lambda tokens, targets: torch.unique(tokens), DynamicOutputShapeException),
        (lambda tokens, targets: tokens[targets > 0], DynamicOutputShapeException),
        (lambda tokens, targets: targets.nonzero(), DynamicOutputShapeException),
    ],
)
def test_a_question_is_noticed(question, error):
    with pytest.raises(error):
        passes(question)
