"""Keys of `tensor` that change no matrix are found, whatever formats read them."""

import pytest
from support import FACTS, ROOT, TINY

from comera_dist.config.reader import read_config
from comera_dist.models.family import known_facts
from comera_dist.models.idle_keys import idle_tensor_keys
from comera_dist.models.tensor_remarks import tensor_remarks

# Without the keys of `tensor` that TINY sets.
MODEL = [override for override in TINY if not override.startswith("tensor.")]
BLOCKS = ["model.format={rest: block_train, embedding: low_rank}"]


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        ([], []),
        (["tensor.rank=8", "tensor.order=2", "tensor.outer_rank=4"], []),
        (["tensor.rank=8", "model.format=dense"], ["tensor.rank = 8"]),
        # The rank of the table, which has none of its own; the blocks have their own key.
        ([*BLOCKS, "tensor.embedding_rank=8", "tensor.rank=16"], ["tensor.rank = 16"]),
        ([*BLOCKS, "tensor.block_train.rank=2"], []),
        (["tensor.block_train.rank=2"], ["tensor.block_train.rank = 2"]),
        # What the other key would give anyway is a choice all the same.
        (["model.format=low_rank", "tensor.low_rank.rank=32"], []),
        (["model.format=low_rank", "tensor.low_rank.rank=8", "tensor.rank=9"], ["tensor.rank = 9"]),
        (["tensor.order=1", "tensor.outer_rank=4"], ["tensor.outer_rank = 4"]),
        (["tensor.embedding_min_rows=2"], ["tensor.embedding_min_rows = 2"]),
        (["tensor.embedding_min_rows=1000000"], []),
        (["tensor.rank=8", "tensor.layers=[{match: '*', rank: 4}]"], ["tensor.rank = 8"]),
        (
            ["model.format=dense", "tensor.layers=[{match: '*.o_proj', rank: 8}]"],
            ["the rule of tensor.layers for '*.o_proj'"],
        ),
        # The first rule matches all that the second one does.
        (
            ["tensor.layers=[{match: '*', rank: 4}, {match: '*.o_proj', rank: 8}]"],
            ["the rule of tensor.layers for '*.o_proj'"],
        ),
        (["tensor.layers=[{match: '*.o_proj', rank: 8}, {match: '*', rank: 4}]"], []),
        # It names the rank that these layers have anyway.
        (["tensor.rank=4", "tensor.layers=[{match: '*.o_proj', rank: 4}]"], []),
        (
            ["tensor.embedding_min_rows=1000000", "tensor.embeddings=[{match: '*', rank: 8}]"],
            ["the rule of tensor.embeddings for '*'"],
        ),
    ],
)
def test_keys_without_a_matrix(overrides, idle):
    assert idle_tensor_keys(read_config(None, [*MODEL, *overrides]), FACTS) == idle


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yaml")))
def test_shipped_configurations_have_none(name):
    config = read_config(ROOT / "configs" / name)
    if (facts := known_facts(config, getattr(config.model, "vocab_size", None) or 4096)) is None:
        pytest.skip("the rows of its tables are those of its data")
    assert tensor_remarks(config, facts) == []


def test_the_sentence_names_all():
    config = read_config(None, [*MODEL, "model.format=dense", "tensor.rank=9"])
    assert tensor_remarks(config, FACTS) == [
        "tensor.rank = 9 has no effect: the matrices of the model are the same without."
    ]
    config = read_config(None, [*MODEL, "tensor.rank=4096", "tensor.block_train.rank=2", "tensor.low_rank.rank=2"])
    (idle, large) = tensor_remarks(config, FACTS)
    assert idle.startswith("tensor.block_train.rank = 2, tensor.low_rank.rank = 2 have no effect: the matrices")
    assert large.startswith("tensor.rank = 4096 is more than any matrix can have")
