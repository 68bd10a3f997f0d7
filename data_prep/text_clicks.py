"""A click log in text files, read block by block.

It is read twice where something has to be learned of its training rows (the words of a dictionary, mean and deviation),
else once.

Legend: N rows of a block, F dense features, C categorical features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from data_prep import click_columns
from data_prep.click_columns import LabelRule
from data_prep.click_features import (
    Dictionary,
    HashedRows,
    Logarithms,
    Moments,
    Standardised,
    WordCounts,
)
from data_prep.skips import Skips
from data_prep.text_table import FAULTS, Block, TextTable

KINDS = (*FAULTS, *click_columns.FAULTS)


class Clicks(NamedTuple):
    number_N: np.ndarray  # of each row in the source, which decides its split where `split` is None
    labels_N: np.ndarray
    dense_NF: np.ndarray
    categories_NC: np.ndarray
    best_loss_N: np.ndarray | None = None  # nats that even who knows the odds of each row would lose on it
    split: str | None = None  # of all these rows


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

    def notes(self) -> list[str]:
        """What a user should know of the files."""
        unnamed = [table.path for table in self.tables if "" in table.columns]
        return [f"{path}: the first column has no name and is left out" for path in unnamed]

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


@dataclass
class Features:
    """How numbers and words are encoded; Moments and WordCounts become an encoding once train is read."""

    numbers: Logarithms | Standardised | Moments
    tables: list[HashedRows | Dictionary | WordCounts]

    @classmethod
    def of(cls, layout: Layout, log: bool, hash_rows: tuple[int, ...], min_count: int) -> "Features":
        """`hash_rows` are one size for each categorical feature, or none for dictionaries."""
        width = len(layout.dense)
        tables = [HashedRows(rows) for rows in hash_rows] or [WordCounts(min_count) for _ in layout.categories]
        return cls(Logarithms(width) if log or not width else Moments(width), tables)

    @property
    def needs_fit(self) -> bool:
        return any(isinstance(part, Moments | WordCounts) for part in (self.numbers, *self.tables))

    def fit(self, records: Records, train_N: np.ndarray) -> None:
        """Takes in the rows of train."""
        if isinstance(self.numbers, Moments):
            self.numbers.fit(records.dense_NF[train_N])
        for table, words_N in zip(self.tables, records.words_CN, strict=True):
            if isinstance(table, WordCounts):
                table.fit(words_N.filter(pa.array(train_N)))

    def learned(self) -> "Features":
        parts = (self.numbers, *self.tables)
        numbers, *tables = (part.learned() if isinstance(part, Moments | WordCounts) else part for part in parts)
        return Features(numbers, tables)


class TextClicks:
    """A click log in text files. `held` are further layouts by the split that all their rows belong to."""

    rows = None

    def __init__(self, layout: Layout, features: Features, held: dict[str, Layout]):
        self.dense, self.categories = layout.dense, layout.categories
        self._layout, self._features, self._held = layout, features, held
        self.needs_fit = features.needs_fit
        self.notes = [note for each in (layout, *held.values()) for note in each.notes()]

    def fit(self, is_train: Callable[[np.ndarray], np.ndarray], skips: Skips, advance: Callable[[int], None]) -> None:
        for records in self._layout.records(skips):
            self._features.fit(records, is_train(records.number_N))
            advance(len(records.number_N))
        self._features = self._features.learned()

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        for split, layout in {None: self._layout, **self._held}.items():
            for records in layout.records(skips):
                yield self._encode(records, split)

    def _encode(self, records: Records, split: str | None) -> Clicks:
        pairs = zip(self._features.tables, records.words_CN, strict=True)
        rows_NC = np.stack([table.encode(words_N) for table, words_N in pairs], axis=1)
        dense_NF = self._features.numbers.encode(records.dense_NF)
        return Clicks(records.number_N, records.labels_N, dense_NF, rows_NC, split=split)

    def facts(self) -> dict:
        made_F = self._features.numbers.facts()
        made_C = [table.facts() for table in self._features.tables]
        return {
            "dense": [{"name": name, **made} for name, made in zip(self.dense, made_F, strict=True)],
            "categories": [{"name": name, **made} for name, made in zip(self.categories, made_C, strict=True)],
            "table_rows": [table.rows for table in self._features.tables],
        }

    def words(self) -> dict[str, list]:
        named = zip(self.categories, self._features.tables, strict=True)
        return {name: written(table.words) for name, table in named if isinstance(table, Dictionary)}


def written(words: list) -> list[str]:
    """Words as text; bytes that are no UTF-8 become lone surrogates, hashes eight digits."""
    return [f"{word:08x}" if isinstance(word, int) else word.decode(errors="surrogateescape") for word in words]


def read_back(words: list[str], hexadecimal: bool) -> list:
    """The words of which `written` made text."""
    return [int(word, 16) if hexadecimal else word.encode(errors="surrogateescape") for word in words]
