"""Where click logs come from: `criteo:GLOB`, `csv:GLOB` or `generated:ROWS[:SEED]`.

Legend: N rows of a block.
"""

import glob
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from comera_dist.errors import DataError
from data_prep.click_columns import LabelRule, is_available
from data_prep.earlier_clicks import EarlierClicks, open_earlier
from data_prep.skips import Skips
from data_prep.text_clicks import Clicks, Features, Layout, TextClicks
from data_prep.text_table import TextTable

CRITEO_DENSE = tuple(f"I{index}" for index in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{index}" for index in range(1, 27))
# Arguments that --dictionaries decides, with their defaults.
_OF_DICTIONARIES = {"dense": (), "categories": (), "log": False, "hash_rows": (), "min_count": 1}


class ClickSource(Protocol):
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    rows: int | None  # as far as known before reading
    needs_fit: bool
    notes: list[str]  # for the report

    def fit(self, is_train: Callable[[np.ndarray], np.ndarray], skips: Skips, advance: Callable[[int], None]) -> None:
        """Learns what it has to from the rows whose numbers `is_train` accepts."""

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        """All rows in order, block by block."""

    def facts(self) -> dict:
        """For the manifest: `dense` and `categories` with names and how they were made, and `table_rows`."""

    def words(self) -> dict[str, list]:
        """For each feature with a dictionary the words of its rows."""


def from_text(kind: str, settings: dict) -> TextClicks:
    """Files of `kind`, "criteo" or "csv", as `settings`, the arguments of the command, describe them.

    DataError when they name no file, or columns that there are not.
    """
    earlier = _earlier(kind, settings)
    make = _criteo if kind == "criteo" else _csv
    columns = settings if earlier is None else {**settings, "dense": earlier.dense, "categories": earlier.categories}
    patterns = {split: settings.get(f"{split}_source") for split in ("valid", "test")}
    held = {split: make(_pattern(kind, spec), columns) for split, spec in patterns.items() if spec}
    layout = (
        make(_pattern(kind, settings["source"]), columns) if settings["source"] else _no_rows(next(iter(held.values())))
    )
    features = earlier.features if earlier else _new_features(layout, kind, settings)
    return TextClicks(layout, features, held)


def _criteo(pattern: str, settings: dict) -> Layout:
    """Criteo's files: a label, 13 counts and 26 hashed words a row, tabs between them, empty where missing.

    Source: the readme of the Kaggle Display Advertising Challenge data, and of the Terabyte Click Logs.
    """
    columns = ("label", *CRITEO_DENSE, *CRITEO_CATEGORIES)
    tables = tuple(TextTable(path, columns, delimiter="\t", quoted=False) for path in files(pattern))
    return Layout(tables, LabelRule.parse("label"), CRITEO_DENSE, CRITEO_CATEGORIES, hexadecimal=True)


def _csv(pattern: str, settings: dict) -> Layout:
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
    return layout


def _new_features(layout: Layout, kind: str, settings: dict) -> Features:
    hash_rows = for_each(settings["hash_rows"], layout.categories)
    return Features.of(layout, kind == "criteo" or settings["log"], hash_rows, settings["min_count"])


def _earlier(kind: str, settings: dict) -> EarlierClicks | None:
    """The features of --dictionaries, where it is given. DataError where other arguments contradict it."""
    folder = settings.get("dictionaries")
    if not folder:
        return None
    for key, default in _OF_DICTIONARIES.items():
        if settings[key] != default:
            option = key.replace("_", "-")
            raise DataError(f"--{option} is that of --dictionaries {folder}; remove one of the two")
    earlier = open_earlier(Path(folder), hexadecimal=kind == "criteo")
    if kind == "criteo" and (earlier.dense, earlier.categories) != (CRITEO_DENSE, CRITEO_CATEGORIES):
        raise DataError(f"--dictionaries {folder} are not of Criteo's columns; name those of a criteo source")
    return earlier


def _pattern(kind: str, spec: str) -> str:
    found, _, pattern = spec.partition(":")
    if found != kind or not pattern:
        raise DataError(f"source {spec!r} is no {kind}:GLOB, and all sources of one data set must be of one kind")
    return pattern


def _no_rows(layout: Layout) -> Layout:
    return replace(layout, tables=())


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
    return TextTable.with_header(files(name)[0], missing, remedy="write a row of names above it"), key


def _check_names(layout: Layout) -> None:
    features = (*layout.dense, *layout.categories)
    if not layout.categories:
        raise DataError("A model of clicks needs at least one categorical feature; name some with --categories.")
    if layout.label.column in features or len(set(features)) < len(features):
        twice = next(name for name in features if features.count(name) > 1 or name == layout.label.column)
        raise DataError(f"Column {twice} is used twice; name each once in --label, --dense and --categories.")
    for table in layout.tables:
        present = set(table.names) | (set(layout.joined[0].names) if layout.joined else set())
        for name in (layout.label.column, *features):
            if name not in present and (name == layout.label.column or not is_available(name, present)):
                raise DataError(f"{table.path} has no column {name!r}; name some of {', '.join(sorted(present))}.")
        if layout.joined:
            _check_join(table, *layout.joined)


def _check_join(table: TextTable, other: TextTable, key: str) -> None:
    common = set(table.names) & set(other.names)
    if common != {key}:
        raise DataError(
            f"{table.path} and {other.path} have in common the columns {', '.join(sorted(common)) or 'none'}, and "
            f"--join needs it to be {key!r} alone; rename the others in one of the files, or join by another column."
        )
