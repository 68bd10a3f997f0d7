"""Pairs of texts as the columns of a prepared data set: tokens, ends of texts, numbers of labels.

A token id is the id of the tokenizer + SPECIALS.

Shapes: R rows, T tokens of all rows.
"""

import itertools
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.columns import Column
from comera_dist.data.pairs import UNLABELLED
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.files.column_folder import ColumnFolder
from data_prep.files.split import SplitRule
from data_prep.pairs.sources import Pair
from data_prep.text.encoding import token_dtype

_CHUNK = 1024  # chosen: pairs that are tokenized and written together
_MOST_LABELS = np.iinfo(np.int16).max  # the dtype of the column


def pair_columns(vocab_size: int) -> dict[str, Column]:
    ends = {name: Column("<i8") for name in ("first_end", "second_end")}
    return {"tokens": Column(token_dtype(vocab_size).str), **ends, "labels": Column("<i2")}


def write_pairs(
    pairs: Iterable[tuple[str, Pair]], tokenizer: Tokenizer, rule: SplitRule, folder: ColumnFolder
) -> list[str]:
    """Appends all pairs to the columns of their splits. Returns the names of their labels, sorted.

    Raises DataError if a split stays empty, or if there are too many labels to be classes.
    """
    token_count, labels, remaining = dict.fromkeys(rule.splits, 0), LabelNumbers(rule.splits), iter(pairs)
    while chunk := list(itertools.islice(remaining, _CHUNK)):
        for split in rule.splits:
            rows = [pair for side, pair in chunk if side == split]
            labels.add(split, rows)
            arrays = encode_pairs(rows, tokenizer, token_count[split])
            token_count[split] += len(arrays["tokens"])
            folder.append(split, arrays)
    names, label_R = labels.by_name()
    for split in rule.splits:
        if not len(label_R[split]):
            found = any(map(len, label_R.values()))
            raise DataError(f"no pair for {split} was found; {rule.remedy(split) if found else 'check --source'}")
        folder.append(split, {"labels": label_R[split]})
    return names


def encode_pairs(pairs: list[Pair], tokenizer: Tokenizer, start: int) -> dict[str, NDArray[Any]]:
    """tokens (T,), first_end and second_end (R,) of rows whose first token is number `start` of the split."""
    texts = [tokenizer.encode(text) for pair in pairs for text in (pair.first, pair.second)]
    end_2R = start + np.cumsum([len(ids) for ids in texts], dtype=np.int64)
    tokens = np.fromiter(itertools.chain.from_iterable(texts), dtype=np.int64) + SPECIALS
    return {"tokens": tokens, "first_end": end_2R[::2], "second_end": end_2R[1::2]}


class LabelNumbers:
    """Numbers the labels in the order in which they first occur, because their names are all known only at the end."""

    def __init__(self, splits: list[str]):
        self._numbers: dict[str, int] = {}
        self._rows = {split: array("h") for split in splits}

    def add(self, split: str, pairs: list[Pair]) -> None:
        for pair in pairs:
            number = UNLABELLED if pair.label is None else self._numbers.setdefault(pair.label, len(self._numbers))
            if number >= _MOST_LABELS:
                raise DataError(f"there are more than {number} labels; name a column of classes with --label-key")
            self._rows[split].append(number)

    def by_name(self) -> tuple[list[str], dict[str, NDArray[np.int64]]]:
        """The names in alphabetical order, and for each split the place of each row's label among them, or -1 (R,)."""
        names = sorted(self._numbers)
        place = np.full(len(names) + 1, UNLABELLED)  # the last entry is that of UNLABELLED = -1
        place[[self._numbers[name] for name in names]] = np.arange(len(names))
        return names, {split: place[np.asarray(number_R)] for split, number_R in self._rows.items()}
