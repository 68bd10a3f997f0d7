"""Fixtures of several packages: a generator, a tolerance per dtype, and a corpus of text."""

import pytest
import torch
from text_corpus import VOCAB, code, make_text_corpus

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2}  # relative to the oracle's largest entry


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20240521)


@pytest.fixture
def assert_close():
    """Compares with an oracle, relative to its largest entry, as exact as `dtype` allows."""

    def check(actual: torch.Tensor, oracle: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        assert actual.shape == oracle.shape
        if oracle.numel():
            actual, oracle = actual.detach(), oracle.detach()
            error = (actual.double() - oracle.double()).abs().max()
            assert error <= TOLERANCE[dtype] * max(1e-6, float(oracle.abs().max())), f"largest error {error:.2e}"

    return check


@pytest.fixture(scope="session")
def text_corpus(tmp_path_factory):
    """The folder of a corpus of text, shared by all tests: do not change it."""
    return make_text_corpus(tmp_path_factory.mktemp("text"), map(code, range(60)), VOCAB)
