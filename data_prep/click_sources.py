"""Where click logs come from: `criteo:GLOB`, `csv:GLOB` or `generated:ROWS[:SEED]`.

Legend: N rows of a block.
"""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from comera_dist.errors import DataError
from data_prep.click_columns import LabelRule, is_available
from data_prep.skips import Skips
from data_prep.text_clicks import Clicks, Layout, TextClicks
from data_prep.text_table import TextTable

CRITEO_DENSE = tuple(f"I{index}" for index in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{index}" for index in range(1, 27))


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
            if not is_available(name, present):
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
