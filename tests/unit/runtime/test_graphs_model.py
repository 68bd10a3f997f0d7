"""A forward and backward pass of the model asks the device nothing, so that it can be captured.

Tensors without values, which torch calls fake, raise where the program depends on a value or a shape depends on one.
They live on the CPU, whose backward pass runs without a GPU, and tell our own code that they are on one.
"""

import sys

import pytest
import torch
from support import TINY, VOCAB
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode

from comera_dist.config.reader import read_config
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.ops.cross_entropy import without_waiting

CUDA = torch.device("cuda", 0)
FORMATS = {
    "dense": "dense",
    "tensor": "{embedding: dense}",
    "tensor_with_embedding": "tensor",
}


class CudaMeansCpu(TorchFunctionMode):
    """Functions that are asked for a tensor on the GPU make one on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.is_cuda.__get__:
            return True
        kwargs = {key: self._real(value) for key, value in (kwargs or {}).items()}
        return function(*map(self._real, args), **kwargs)

    @staticmethod
    def _real(value):
        return torch.device("cpu") if value == CUDA else value


@pytest.fixture
def passes(monkeypatch):
    """Runs a function on tokens and targets (2, 16) without values."""
    plain = FakeTensor.device

    def device(tensor):
        asked_by_us = sys._getframe(1).f_globals["__name__"].startswith(("comera_dist.", __name__))
        return CUDA if asked_by_us else plain.fget(tensor)

    monkeypatch.setattr(FakeTensor, "device", property(device))

    def run(function):
        with FakeTensorMode(allow_non_fake_inputs=True), CudaMeansCpu(), without_waiting():
            tokens, targets = (torch.empty(2, 16, dtype=torch.long) for _ in range(2))
            assert tokens.device.type == "cuda"
            function(tokens, targets)

    return run


@pytest.mark.parametrize("kind", FORMATS)
def test_the_decoder_asks_the_device_nothing(passes, kind):
    config = read_config(None, [*TINY, f"model.format={FORMATS[kind]}"])
    model = Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0))

    def forward_and_backward(tokens, targets):
        gradients = torch.autograd.grad(model(tokens, targets), list(model.parameters()))
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
def test_a_question_is_noticed(passes, question, error):
    with pytest.raises(error):
        passes(question)
