"""A decoder's second table: which row a pair of tokens has, and that the rows are added to the embedding."""

import pytest
import torch
from support import TINY, VOCAB

from comera_dist.config.reader import read_config
from comera_dist.formats.capabilities import ToDense
from comera_dist.models.decoder.bigrams import NOTHING, bigram_rows, tokens_before
from comera_dist.models.decoder.plan import BIGRAMS, DecoderFacts
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim.groups import parameter_groups

ROWS = 50
HAS_TABLE = f"model.bigram_rows={ROWS}"
FORMATS = ["dense", "tensor", "low_rank", "mixed_dimension"]


def build(*overrides):
    config = read_config(None, [*TINY, *overrides])
    plan = plan_model(config, DecoderFacts(VOCAB))
    return config, plan, build_model(config.model, plan, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rows", [1, 50, 16384, 2**31 - 1])
def test_the_hash_is_that_of_numbers_without_a_limit(rows):
    ids = [0, 1, 2, 1023, 65_537, 2**30 - 1]
    before, token = (torch.tensor(side)[None] for side in zip(*[(b, t) for b in ids for t in ids], strict=True))
    found = bigram_rows(token, before, rows)[0].tolist()
    expected = [((b * 2654435761 + t * 2246822519) % 2**32 * rows) >> 32 for b in ids for t in ids]
    assert found == expected
    assert all(0 <= row < rows for row in found)


@pytest.mark.parametrize(("vocabulary", "rows"), [(1024, 16384), (1024, 10_007), (300, 4096)])
def test_pairs_are_spread_over_the_rows(vocabulary, rows):
    """Of all pairs, and of those of the first ids alone, which sentencepiece gives to frequent pieces."""
    for ids in (vocabulary, vocabulary // 4):
        before_BS, token_BS = torch.meshgrid(torch.arange(ids), torch.arange(ids), indexing="ij")
        mean = ids**2 / rows
        load = torch.bincount(bigram_rows(token_BS, before_BS, rows).flatten(), minlength=rows)
        assert load.max() <= mean + 6 * mean**0.5  # as of independent draws
        neighbours = bigram_rows(token_BS[:1], before_BS[:1], rows).flatten()
        assert len(neighbours.unique()) > 0.9 * min(ids, rows)  # after one token, few others share a row


def test_the_token_before_is_that_of_the_same_document():
    tokens_BS = torch.tensor([[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]])
    starts_BS, place_S = torch.tensor([[0, 0, 2, 2, 4], [0, 0, 0, 0, 0]]), torch.arange(5)
    assert tokens_before(tokens_BS, None, place_S).tolist() == [[NOTHING, 5, 6, 7, 8], [NOTHING, 1, 2, 3, 4]]
    assert tokens_before(tokens_BS, None, place_S - starts_BS).tolist() == [
        [NOTHING, 5, NOTHING, 7, NOTHING],
        [NOTHING, 1, 2, 3, 4],
    ]
    assert tokens_before(tokens_BS, torch.tensor([3, 4]), place_S + 7)[:, 0].tolist() == [3, 4]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_pairs_are_added_to_the_embedding(format):
    rank = "" if format == "dense" else ", rank: 4"
    rule = f"tensor.embeddings=[{{match: {BIGRAMS}, format: {format}{rank}}}]"
    _, plan, model = build("model.format=dense", HAS_TABLE, rule)
    assert plan[BIGRAMS].dense_size == (ROWS, 16)
    tokens_BS = torch.randint(1, VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    table = model.model.embed_bigrams
    for parameter in table.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(2))
    dense = table.to_dense() if isinstance(table, ToDense) else table.weight
    expected = model.model.embed_tokens(tokens_BS).clone()
    for row, tokens in enumerate(tokens_BS.tolist()):
        for place, pair in enumerate(zip([NOTHING, *tokens], tokens, strict=False)):
            before, token = (torch.tensor([[one]]) for one in pair)
            expected[row, place] += dense[bigram_rows(token, before, ROWS)[0, 0]]
    torch.testing.assert_close(model.model._embed(tokens_BS, torch.arange(9), None), expected)
    without = model(tokens_BS)
    table.apply(lambda module: [parameter.data.zero_() for parameter in module.parameters()])
    assert not torch.allclose(model(tokens_BS), without)


def test_a_decoder_without_such_rows_has_no_such_table():
    _, plan, model = build()
    assert BIGRAMS not in plan
    assert model.model.embed_bigrams is None


def test_the_table_has_the_rate_of_tables():
    config, _, model = build("model.format=dense", HAS_TABLE, "optim.table_lr_scale=8")
    (group,) = (
        g for g in parameter_groups(model, config.optim) if model.model.embed_bigrams.weight in set(g["params"])
    )
    assert group["lr"] == 8 * config.optim.lr
