"""A click log in text files, read block by block.

It is read twice where something has to be learned of its training rows (the words of a dictionary, mean and deviation),
else once.

Legend: N rows of a block, F dense features, C categorical features.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from data_prep import click_columns
from data_prep.click_columns import LabelRule
from data_prep.click_features import DictionaryRows, HashedRows, Logarithms, Standardised
from data_prep.skips import Skips
from data_prep.text_table import FAULTS, Block, TextTable

KINDS = (*FAULTS, *click_columns.FAULTS)


class Clicks(NamedTuple):
    number_N: np.ndarray  # of each row in the source, which decides its split
    labels_N: np.ndarray
    dense_NF: np.ndarray
    categories_NC: np.ndarray
    best_loss_N: np.ndarray | None = None  # nats that even who knows the odds of each row would lose on it


class Records(NamedTuple):
    number_N: np.ndarray
    labels_N: np.ndarray
    dense_NF: np.ndarray  # float64, NaN where missing
    words_CN: list[pa.Array]  # bytes or uint32, null where missing


@dataclass(frozen=True)
class Layout:
    """Which columns of a text are what. `joined`, where there is one, adds columns by a key that both have."""

    tables: tuple[TextTable, ...]
    label: LabelRule
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    hexadecimal: bool = False
    joined: tuple[TextTable, str] | None = None

    def records(self, skips: Skips) -> Iterator[Records]:
        join = click_columns.Join(*self.joined, skips) if self.joined else None
        first = 0
        for table in self.tables:
            for block in table.blocks(skips):
                number_N = np.arange(first, first + block.rows)
                first += block.rows
                yield self._records(join.add_to(block) if join else block, number_N, skips)

    def _records(self, block: Block, number_N: np.ndarray, skips: Skips) -> Records:
        columns = click_columns.ParsedColumns(block, skips)
        labels_N = columns.labels(self.label)
        dense_FN = [columns.numbers(name) for name in self.dense]
        parse = columns.hexadecimals if self.hexadecimal else columns.words
        words_CN = [parse(name) for name in self.categories]
        keep_N = columns.good_N
        dense_NF = np.stack(dense_FN, axis=1) if dense_FN else np.empty((len(number_N), 0))
        if not keep_N.all():
            words_CN = [words_N.filter(pa.array(keep_N)) for words_N in words_CN]
        return Records(number_N[keep_N], labels_N[keep_N], dense_NF[keep_N], words_CN)


class TextClicks:
    """A click log in text files: `hash_rows` for each categorical feature, or none for dictionaries."""

    rows = None

    def __init__(self, layout: Layout, log: bool, hash_rows: tuple[int, ...], min_count: int):
        self._layout, self.dense, self.categories = layout, layout.dense, layout.categories
        self._numbers = (Logarithms if log else Standardised)(len(self.dense))
        self._tables = (
            [HashedRows(rows) for rows in hash_rows]
            if hash_rows
            else [DictionaryRows(min_count) for _ in self.categories]
        )
        self.needs_fit = not hash_rows or bool(self.dense and self._numbers.needs_fit)

    def fit(self, is_train: Callable[[np.ndarray], np.ndarray], skips: Skips, advance: Callable[[int], None]) -> None:
        for number_N, _, dense_NF, words_CN in self._layout.records(skips):
            train_N = is_train(number_N)
            if self._numbers.needs_fit:
                self._numbers.fit(dense_NF[train_N])
            for table, words_N in zip(self._tables, words_CN, strict=True):
                if table.needs_fit:
                    table.fit(words_N.filter(pa.array(train_N)))
            advance(len(train_N))

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        for number_N, labels_N, dense_NF, words_CN in self._layout.records(skips):
            rows_CN = [table.encode(words_N) for table, words_N in zip(self._tables, words_CN, strict=True)]
            yield Clicks(number_N, labels_N, self._numbers.encode(dense_NF), np.stack(rows_CN, axis=1))

    def facts(self) -> dict:
        made_F, made_C = self._numbers.facts(), [table.facts() for table in self._tables]
        return {
            "dense": [{"name": name, **made} for name, made in zip(self.dense, made_F, strict=True)],
            "categories": [{"name": name, **made} for name, made in zip(self.categories, made_C, strict=True)],
            "table_rows": [table.rows for table in self._tables],
        }

    def words(self) -> dict[str, list]:
        named = zip(self.categories, self._tables, strict=True)
        return {name: _readable(table.words) for name, table in named if isinstance(table, DictionaryRows)}


def _readable(words: list) -> list[str]:
    if words and isinstance(words[0], int):
        return [f"{word:08x}" for word in words]
    return [re.sub(r"[\ud800-\udfff]", "\ufffd", word.decode(errors="replace")) for word in words]
