"""Whole words are hidden, as many as fit, the same for a draw whatever else is in the batch."""

import numpy as np
import pytest
import torch

from comera_dist.data.masking import MaskedPairs, word_numbers
from comera_dist.data.pairs import JoinedPairs
from comera_dist.data.special_tokens import MASK, SPECIALS

VOCAB = 5000
SEQ_LEN = 48
FRACTION = 0.25


def borders(share=0.5):
    random = np.random.default_rng(3)
    starts_V, ends_V = random.random(VOCAB) < share, random.random(VOCAB) < share / 4
    ends_V[:SPECIALS] = True
    return starts_V, ends_V


@pytest.fixture
def masked(pair_corpus):
    """MaskedPairs over random texts of 1 to 30 tokens, their unmasked rows, and their word borders."""
    random, (starts_V, ends_V) = np.random.default_rng(4), borders()
    pairs = [[random.integers(4, VOCAB, random.integers(1, 30)).tolist() for _ in "ab"] for _ in range(400)]
    corpus = pair_corpus(pairs, vocab_size=VOCAB, starts_V=starts_V, ends_V=ends_V)
    plain_BS, _ = JoinedPairs(corpus, "train", SEQ_LEN).read(np.arange(len(pairs)))

    def build(seed=1, fraction=FRACTION):
        return MaskedPairs(corpus, "train", SEQ_LEN, fraction, seed)

    build.plain_BS, build.words = plain_BS, [words_of(row, starts_V, ends_V) for row in plain_BS.tolist()]
    return build


def words_of(tokens, starts_V, ends_V):
    """Lists of the places of each word of a row."""
    words = []
    for place, token in enumerate(tokens):
        if token >= SPECIALS:
            if starts_V[token] or ends_V[tokens[place - 1]]:
                words.append([])
            words[-1].append(place)
    return words


def hidden_by_hand(words, order, share):
    """Places that a row hides: the slow oracle of one row."""
    hidden = []
    ranked = sorted(range(len(words)), key=lambda word: order[word])
    for word in ranked:
        if len(hidden) + len(words[word]) <= share:
            hidden += words[word]
    return sorted(hidden) or [words[ranked[0]][0]]


def test_rows_hide_the_words_that_a_loop_over_words_hides(masked):
    examples, row_B = masked(), np.arange(400)
    draw_B = row_B * 7 + 5
    batch = examples.batch(row_B, draw_B)
    assert batch.positions_BP.shape == (400, 12)  # 48 / 4
    for row, (draw, plain, words) in enumerate(zip(draw_B, masked.plain_BS.tolist(), masked.words, strict=True)):
        key = np.random.SeedSequence(1).generate_state(1, np.uint64)[0]
        order, fate, token = np.random.Generator(np.random.Philox(key=np.array([key, draw], np.uint64))).random(
            (3, SEQ_LEN)
        )
        share = max(1, round(sum(map(len, words)) * FRACTION))
        hidden = hidden_by_hand(words, order, share)
        unused = 12 - len(hidden)
        assert batch.positions_BP[row].tolist() == hidden + [0] * unused
        assert batch.targets_BP[row].tolist() == [plain[place] for place in hidden] + [-100] * unused
        shown = list(plain)
        for place in hidden:
            if fate[place] < 0.9:
                shown[place] = MASK if fate[place] < 0.8 else 4 + int(token[place] * (VOCAB - 4))
        assert batch.tokens_BS[row].tolist() == shown


def test_a_row_follows_from_seed_and_draw_alone(masked):
    examples, draw_B = masked(), np.array([9, 2**40, 7, 0])
    together = examples.batch(np.array([3, 5, 3, 8]), draw_B)
    for index, (row, draw) in enumerate(zip([3, 5, 3, 8], draw_B, strict=True)):
        alone = examples.batch(np.array([row]), np.array([draw]))
        assert all(torch.equal(many[index], one[0]) for many, one in zip(together, alone, strict=True))
    assert not torch.equal(together.positions_BP[0], together.positions_BP[2]), "another draw hides others"
    others = masked(seed=2).batch(np.array([3, 5, 3, 8]), draw_B)
    assert not torch.equal(together.positions_BP, others.positions_BP), "another seed hides others"


def test_eighty_ten_ten(masked):
    shown, hidden = [], []
    examples = masked()
    for epoch in range(10):
        batch = examples.batch(np.arange(400), np.arange(400) + 400 * epoch)
        counts = batch.targets_BP != -100
        shown.append(batch.tokens_BS.gather(1, batch.positions_BP)[counts])
        hidden.append(batch.targets_BP[counts])
    shown, hidden = torch.cat(shown), torch.cat(hidden)
    assert len(shown) > 20_000
    assert abs((shown == MASK).float().mean() - 0.8) < 0.01
    assert abs((shown == hidden).float().mean() - 0.1) < 0.01
    assert shown.min() == MASK
    assert shown.max() > VOCAB * 0.99


def test_nothing_else_changes_and_a_filler_counts_nothing(masked):
    row_B = np.array([4, -1, 6])
    batch = masked().batch(row_B, row_B)
    assert (batch.targets_BP[1] == -100).all()
    assert (batch.positions_BP[1] == 0).all()
    for index in (0, 2):
        changed = (batch.tokens_BS[index] != torch.from_numpy(masked.plain_BS[row_B[index]])).nonzero().flatten()
        assert set(changed.tolist()) <= set(batch.positions_BP[index].tolist())
    assert all(tensor.dtype == torch.long for tensor in batch)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.15, 1.0])
def test_every_row_hides_a_token_and_all_fit_their_places(masked, fraction):
    batch = masked(fraction=fraction).batch(np.arange(400), np.arange(400))
    count_B = (batch.targets_BP != -100).sum(1)
    text_B = torch.from_numpy((masked.plain_BS >= SPECIALS).sum(1))
    assert count_B.min() >= 1
    assert (count_B <= (text_B * fraction).round().clamp(min=1)).all()
    if fraction == 1.0:
        assert torch.equal(count_B, text_B)


def test_a_row_of_one_long_word_hides_one_token(pair_corpus):
    starts_V = np.zeros(VOCAB, bool)
    ends_V = np.arange(VOCAB) < SPECIALS
    corpus = pair_corpus([[[50] * 20, [60] * 20]], vocab_size=VOCAB, starts_V=starts_V, ends_V=ends_V)
    batch = MaskedPairs(corpus, "train", SEQ_LEN, 0.15, 1).batch(np.array([0]), np.array([0]))
    assert (batch.targets_BP != -100).sum() == 1
    assert batch.positions_BP[0, 0] in (1, 22)  # the first token of either text


def test_a_row_without_words_hides_nothing(pair_corpus):
    starts_V, ends_V = np.ones(VOCAB, bool), np.arange(VOCAB) < SPECIALS
    corpus = pair_corpus([[[], []], [[50], [60]]], vocab_size=VOCAB, starts_V=starts_V, ends_V=ends_V)
    batch = MaskedPairs(corpus, "train", SEQ_LEN, 0.15, 1).batch(np.array([0, 1]), np.array([0, 1]))
    assert (batch.targets_BP != -100).sum(1).tolist() == [0, 1]
    assert (batch.tokens_BS[0] >= 0).all()


def test_a_word_begins_with_its_token_or_after_the_end_of_one():
    starts_V, ends_V = np.zeros((2, 10), bool)
    starts_V[[5, 6]] = ends_V[[0, 1, 2, 3, 6]] = True  # 5 begins a word, 6 is one by itself
    tokens_BS = np.array([[1, 7, 8, 5, 7, 6, 7, 2, 7, 2, 0]])
    assert word_numbers(tokens_BS, starts_V, ends_V).tolist() == [[-1, 0, 0, 1, 1, 2, 3, -1, 4, -1, -1]]
