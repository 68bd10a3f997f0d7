"""Documents that share a window are computed as if each were alone, and do not see each other."""

import pytest
import torch
from support import FACTS, TINY, VOCAB
from torch.nn import functional as F

from comera_dist.config.reader import read_config
from comera_dist.data.documents import document_starts
from comera_dist.models.checkpointed_block import checkpoint_blocks
from comera_dist.models.family import build_model, plan_model

EOS = 0
FORMATS = ["tensor", "dense", "block_train", "{rest: block_train, embedding: low_rank, head: low_rank}"]
LENGTHS = [(4, 1, 9, 6), (13, 7), (20,)]  # of the documents of each row, 20 tokens in all
MORE = ["model.heads=4", "model.kv_heads=2"]
PAIRS = ["model.bigram_rows=50"]


def build(format, *more):
    config = read_config(None, [*TINY, f"model.format={format}", *more])
    model = build_model(config.model, plan_model(config, FACTS), torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():  # the start is nearly linear in the residual stream: make attention matter
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def window(lengths, seed):
    """Tokens (S,) and targets (S,) of documents that begin with EOS, but for the first one, which is cut."""
    tokens = torch.randint(1, VOCAB, (sum(lengths) + 1,), generator=torch.Generator().manual_seed(seed))
    place = 0
    for length in lengths[:-1]:
        place += length
        tokens[place] = EOS
    return tokens[:-1], tokens[1:]


def packed():
    tokens_BS, targets_BS = map(
        torch.stack, zip(*(window(lengths, i) for i, lengths in enumerate(LENGTHS)), strict=True)
    )
    return tokens_BS, document_starts(tokens_BS, EOS), targets_BS


def documents():
    """(row, slice) of each document."""
    for row, lengths in enumerate(LENGTHS):
        end = 0
        for length in lengths:
            yield row, slice(end, end + length)
            end += length


@pytest.mark.parametrize("more", [[], MORE, PAIRS], ids=["heads", "grouped", "pairs of tokens"])
@pytest.mark.parametrize("format", FORMATS)
def test_logits_are_those_of_each_document_alone(format, more):
    model, (tokens_BS, starts_BS, _) = build(format, *more), packed()
    with torch.no_grad():
        found_BSV, joined_BSV = model(tokens_BS, starts_BS, None), model(tokens_BS)
        for row, place in documents():
            alone_SV = model(tokens_BS[row : row + 1, place])[0]
            torch.testing.assert_close(found_BSV[row, place], alone_SV, rtol=1e-4, atol=1e-5)
            is_first = place.start == 0
            assert torch.allclose(joined_BSV[row, place], alone_SV, rtol=1e-4, atol=1e-5) == is_first


@pytest.mark.parametrize("format", FORMATS)
def test_loss_and_gradients_are_the_sums_over_documents_alone(format):
    model, (tokens_BS, starts_BS, targets_BS) = build(format), packed()
    parameters = list(model.parameters())
    targets_BS[1, 3:6] = -100
    loss = model(tokens_BS, starts_BS, targets_BS)
    expected = sum(
        F.cross_entropy(model(tokens_BS[row : row + 1, place])[0], targets_BS[row, place], reduction="sum")
        for row, place in documents()
    )
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    pairs = zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True)
    for ours, oracle in pairs:
        torch.testing.assert_close(ours, oracle, rtol=1e-3, atol=1e-4 * float(oracle.abs().max()))


@pytest.mark.parametrize("more", [[], PAIRS], ids=["", "pairs of tokens"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_changed_document_changes_no_bit_of_another(format, more):
    model, (tokens_BS, starts_BS, _) = build(format, *more), packed()
    changed_BS = tokens_BS.clone()
    changed_BS[0, 1:4] = tokens_BS[0, 1:4].flip(0)  # the same tokens, because a lookup computes distinct ones
    assert not torch.equal(changed_BS, tokens_BS)
    with torch.no_grad():
        before, after = (model(tokens, starts_BS, None) for tokens in (tokens_BS, changed_BS))
        joined = [model(tokens) for tokens in (tokens_BS, changed_BS)]
    assert torch.equal(before[0, 4:], after[0, 4:])
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[0, :4], after[0, :4])
    assert not torch.equal(joined[0][0, 4:], joined[1][0, 4:])


def test_a_window_longer_than_a_block_of_the_kernel_has_no_hole():
    """A CPU computes attention in blocks of 512 keys; late documents see none of the first blocks."""
    model, lengths = build("dense"), (600, 1, 700)
    tokens_S, _ = window(lengths, 5)
    tokens_BS = tokens_S[None]
    with torch.no_grad():
        found = model(tokens_BS, document_starts(tokens_BS, EOS), None)
        alone = model(tokens_BS[:, 601:])
    torch.testing.assert_close(found[:, 601:], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["selective", "block"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputed_blocks_have_the_same_gradients(mode, precision):
    model, batch, found = build("tensor"), packed(), []
    for one in ("none", mode):
        checkpoint_blocks(model, one)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(*batch)
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(map(torch.equal, *found))


def test_a_text_is_written_from_the_logits_of_its_own_document():
    """Generation reads a document from its EOS on, as training does."""
    model, (tokens_BS, starts_BS, _) = build("tensor"), packed()
    with torch.no_grad():
        logits_BSV = model(tokens_BS, starts_BS, None)
        cache = model.empty_cache(20)
        first_BV = model.next_logits(tokens_BS[1:2, 13:16], cache)
        torch.testing.assert_close(first_BV[0], logits_BSV[1, 15], rtol=1e-4, atol=1e-5)
        for place in (16, 17):
            next_BV = model.next_logits(tokens_BS[1:2, place : place + 1], cache)
            torch.testing.assert_close(next_BV[0], logits_BSV[1, place], rtol=1e-4, atol=1e-5)


def test_figures_on_held_out_rows_are_those_of_training():
    model, batch = build("tensor"), packed()
    assert torch.equal(model.measure(*batch)["loss"], model(*batch))
