"""Where click logs come from: `criteo:GLOB`, `csv:GLOB` or `generated:ROWS[:SEED]`.

A text is read twice where something has to be learned of its training rows (the words of a dictionary, mean and
deviation), else once, and always block by block.

Legend: N rows of a block, F dense features, C categorical features.
"""

import glob
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from comera_dist.errors import DataError
from data_prep import click_columns
from data_prep.click_columns import LabelRule
from data_prep.click_features import DictionaryRows, HashedRows, Logarithms, Standardised
from data_prep.skips import Skips
from data_prep.text_table import FAULTS, TextTable

KINDS = (*FAULTS, *click_columns.FAULTS)
CRITEO_DENSE = tuple(f"I{index}" for index in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{index}" for index in range(1, 27))


class Clicks(NamedTuple):
    number_N: np.ndarray  # of each row in the source, which decides its split
    labels_N: np.ndarray
    dense_NF: np.ndarray
    categories_NC: np.ndarray
    best_loss_N: np.ndarray | None = None  # nats that even who knows the odds of each row would lose on it


class ClickSource(Protocol):
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    rows: int | None  # as far as known before reading
    needs_fit: bool

    def fit(self, is_train: Callable[[np.ndarray], np.ndarray], skips: Skips, advance: Callable[[int], None]) -> None:
        """Learns what it has to from the rows whose numbers `is_train` accepts."""

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        """All rows in order, block by block."""

    def facts(self) -> dict:
        """For the manifest: `dense` and `categories` with names and how they were made, and `table_rows`."""

    def words(self) -> dict[str, list]:
        """For each feature with a dictionary the words of its rows."""


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

    def _records(self, block, number_N: np.ndarray, skips: Skips) -> Records:
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
    """A click log in text files: `hash_rows` of each categorical feature, or None for dictionaries."""

    rows = None

    def __init__(self, layout: Layout, log: bool, hash_rows: tuple[int, ...] | None, min_count: int):
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


def criteo(pattern: str, hash_rows: tuple[int, ...], min_count: int) -> TextClicks:
    """Criteo's files: a label, 13 counts and 26 hashed words a row, tabs between them, empty where missing.

    Source: the readme of the Kaggle Display Advertising Challenge data, and of the Terabyte Click Logs.
    """
    columns = ("label", *CRITEO_DENSE, *CRITEO_CATEGORIES)
    tables = tuple(TextTable(path, columns, delimiter="\t", quoted=False) for path in files(pattern))
    layout = Layout(tables, LabelRule.parse("label"), CRITEO_DENSE, CRITEO_CATEGORIES, hexadecimal=True)
    return TextClicks(layout, log=True, hash_rows=for_each(hash_rows, CRITEO_CATEGORIES), min_count=min_count)


def csv(pattern: str, settings: dict) -> TextClicks:
    """CSV files as `settings`, the arguments of the command, describe them."""
    missing = ("", *settings["missing"])
    named = settings["columns"]
    tables = tuple(
        TextTable(path, named, missing=missing) if named else TextTable.with_header(path, missing)
        for path in files(pattern)
    )
    joined = _joined(settings["join"], missing) if settings["join"] else None
    label = LabelRule.parse(settings["label"])
    layout = Layout(tables, label, settings["dense"], settings["categories"], joined=joined)
    _check_names(layout)
    hash_rows = for_each(settings["hash_rows"], layout.categories)
    return TextClicks(layout, settings["log"], hash_rows, settings["min_count"])


def for_each(hash_rows: tuple[int, ...], categories: tuple[str, ...]) -> tuple[int, ...]:
    """One number for all features repeated; DataError where there are several, but not one for each."""
    if len(hash_rows) == 1:
        return hash_rows * len(categories)
    if hash_rows and len(hash_rows) != len(categories):
        raise DataError(
            f"--hash-rows names {len(hash_rows)} tables and there are {len(categories)} categorical features; give one "
            "number for each, or one for all."
        )
    return hash_rows


def files(pattern: str) -> list[Path]:
    paths = sorted(Path(name) for name in glob.glob(str(Path(pattern).expanduser())) if Path(name).is_file())
    if not paths:
        raise DataError(f"No file matches {pattern}; check the pattern, and quote it where it holds * or ?.")
    return paths


def _joined(spec: str, missing: tuple[str, ...]) -> tuple[TextTable, str]:
    name, _, key = spec.rpartition(":")
    if not name:
        raise DataError(f"--join {spec} names no key; write FILE:COLUMN with a column that both files have.")
    return TextTable.with_header(files(name)[0], missing), key


def _check_names(layout: Layout) -> None:
    features = (*layout.dense, *layout.categories)
    if not layout.categories:
        raise DataError("A model of clicks needs at least one categorical feature; name some with --categories.")
    if layout.label.column in features or len(set(features)) < len(features):
        twice = next(name for name in features if features.count(name) > 1 or name == layout.label.column)
        raise DataError(f"Column {twice} is used twice; name each once in --label, --dense and --categories.")
    for table in layout.tables:
        present = set(table.columns) | (set(layout.joined[0].columns) if layout.joined else set())
        for name in (layout.label.column, *features):
            if not click_columns.is_available(name, present):
                raise DataError(f"{table.path} has no column {name!r}; name some of {', '.join(sorted(present))}.")
        if layout.joined:
            _check_join(table, *layout.joined)


def _check_join(table: TextTable, other: TextTable, key: str) -> None:
    common = set(table.columns) & set(other.columns)
    if common != {key}:
        raise DataError(
            f"{table.path} and {other.path} have in common the columns {', '.join(sorted(common)) or 'none'}, and "
            f"--join needs it to be {key!r} alone; rename the others with --columns, or join by another column."
        )


def _readable(words: list) -> list[str]:
    if words and isinstance(words[0], int):
        return [f"{word:08x}" for word in words]
    return [re.sub(r"[\ud800-\udfff]", "\ufffd", word.decode(errors="replace")) for word in words]
