"""Pairs are joined and cut as one would by hand, row by row."""

import numpy as np
import pytest
import torch
from support import digest

from comera_dist.data.pairs import JoinedPairs, LabelledPairs, class_names
from comera_dist.data.special_tokens import CLS, PADDING, SEP
from comera_dist.errors import ConfigError, DataError


def random_pairs(count, longest=12):
    random = np.random.default_rng(count)
    return [[random.integers(4, 200, random.integers(1, longest)).tolist() for _ in "ab"] for _ in range(count)]


def by_hand(first, second, seq_len):
    """Tokens and token types of one row: the slow oracle, which takes one token at a time from the longer text."""
    first, second = list(first), list(second)
    while len(first) + len(second) > seq_len - 3:
        (first if len(first) > len(second) else second).pop()
    tokens = [CLS, *first, SEP, *second, SEP]
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    rest = seq_len - len(tokens)
    return tokens + [PADDING] * rest, types + [0] * rest


@pytest.mark.parametrize("seq_len", [5, 6, 9, 14, 27, 40])
def test_rows_are_joined_and_cut_as_by_hand(pair_corpus, seq_len):
    pairs = random_pairs(300)
    rows = np.random.default_rng(0).permutation(len(pairs))
    tokens_BS, types_BS = JoinedPairs(pair_corpus(pairs), "train", seq_len).read(rows)
    wanted = [by_hand(*pairs[row], seq_len) for row in rows]
    assert tokens_BS.tolist() == [tokens for tokens, _ in wanted]
    assert types_BS.tolist() == [types for _, types in wanted]


def test_targets_are_labels_where_there_are_some(pair_corpus):
    examples = LabelledPairs(pair_corpus(random_pairs(4), labels=np.array([2, -1, 0, 1])), "train", 12)
    assert len(examples) == 4
    row_B = np.array([3, 1, -1, 0])
    batch = examples.batch(row_B, row_B)
    assert batch.targets_B.tolist() == [1, -100, -100, 2]
    assert all(tensor.dtype == torch.long for tensor in batch)
    assert batch.tokens_BS.shape == batch.token_types_BS.shape == (4, 12)
    assert (batch.tokens_BS[2, 1:] >= 2).any(), "a filler is a row that a model can read"


def test_a_length_without_place_for_two_texts_is_refused(pair_corpus):
    corpus = pair_corpus(random_pairs(2))
    with pytest.raises(ConfigError, match=r"data\.seq_len = 4 .* 5 or more"):
        LabelledPairs(corpus, "train", 4)


def test_what_is_missing_is_said(pair_corpus):
    with pytest.raises(DataError, match="has no split 'test'; it has train"):
        pair_corpus(random_pairs(2)).split("test")
    with pytest.raises(DataError, match="has no pairs"):
        pair_corpus([]).split("train")


@pytest.mark.parametrize(
    ("end", "value", "found"),
    [("first_end", 99, "99 and 8"), ("first_end", 3, "3 and 8"), ("second_end", -1, "6 and -1")],
)
def test_ends_that_do_not_grow_are_refused(pair_corpus, tmp_path, end, value, found):
    corpus = pair_corpus([[[5, 6], [7, 8]], [[9, 10], [11, 12]]])
    ends = np.memmap(tmp_path / "pairs" / "train" / f"{end}.bin", dtype="<i8", mode="r+")
    ends[1] = value
    pairs = JoinedPairs(corpus, "train", 9)
    pairs.read(np.array([0]))
    with pytest.raises(DataError, match=f"ends the texts of row 1 at {found}, expected growing places within 8 tokens"):
        pairs.read(np.array([0, 1]))


def test_labels_below_those_that_there_are_are_refused(pair_corpus):
    """-100 would be taken for a place without a target."""
    examples = LabelledPairs(pair_corpus(random_pairs(2), labels=np.array([0, -100])), "train", 12)
    with pytest.raises(DataError, match="holds label -100, expected -1 or more; copy the data set again"):
        examples.batch(np.arange(2), np.arange(2))


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x05\x06" + b"\0" * 18,  # an empty archive, for which np.load returns no array
        b"\x93NUMPY\x01\x00\x47\x00{'descr': '|b1', 'fortran_order': False, 'shape': (10000000000000,)}\n",
        b"\x93NUMPY\x01\x00\x04\x00{1:\n",
        b"\x93NUMPY\x01\x00\x45\x00{'descr': '|O', 'fortran_order': False, 'shape': (2,), 'x': 123456}\n",
    ],
    ids=["archive", "huge", "cut", "objects"],
)
def test_word_borders_of_any_content_with_the_right_hash_are_one_sentence(pair_corpus, tmp_path, content):
    corpus = pair_corpus(random_pairs(2))
    path = tmp_path / "pairs" / "word_starts.npy"
    path.write_bytes(content)
    corpus.contents.sha256[path] = digest(path)
    with pytest.raises(DataError, match=r"word_starts\.npy cannot be read \(.*\); prepare the pairs again"):
        corpus.word_borders()


def test_damaged_word_borders_are_refused(pair_corpus, tmp_path):
    with pytest.raises(DataError, match=r"word_ends\.npy has bool of shape \(7,\), expected bool for 200 tokens"):
        pair_corpus(random_pairs(2), ends_V=np.ones(7, bool)).word_borders()
    corpus = pair_corpus(random_pairs(2))
    (tmp_path / "pairs" / "word_starts.npy").write_bytes(b"cut")
    with pytest.raises(DataError, match=r"word_starts\.npy is damaged.* --overwrite"):
        corpus.word_borders()


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        (["yes", "no"], ["LABEL_2", "LABEL_3"]),
        (["LABEL_0", "LABEL_2"], ["LABEL_3", "LABEL_1"]),
        (["LABEL_3", "LABEL_2"], ["LABEL_0", "LABEL_1"]),
        (["a", "b", "c", "d", "e"], []),
    ],
)
def test_a_class_without_a_label_has_no_name_of_another_one(labels, more):
    assert class_names(labels, 4) == [*labels, *more]
