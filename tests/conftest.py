import os
from collections.abc import Generator

import pytest
import torch
from support import make_corpus

from comera_dist.commands.imports import kept_imports


def pytest_configure():
    """Workers fill all cores. Further threads wait for each other: tests of models took ten times as much time."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All modules of tests import a million objects, which no test is to collect."""
    with kept_imports():
        return (yield)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """A corpus folder of generated tokens, shared by all tests: do not change it."""
    return make_corpus(tmp_path_factory.mktemp("corpus") / "generated")


@pytest.fixture(autouse=True)
def own_environment():
    """A command that a test calls leaves its place in the environment, where later runs would find it."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
