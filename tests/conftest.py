import pytest
from support import make_corpus


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory):
    """A corpus folder of generated tokens, shared by all tests: do not change it."""
    return make_corpus(tmp_path_factory.mktemp("corpus") / "generated")
