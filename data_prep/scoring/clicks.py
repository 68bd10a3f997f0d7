"""Rows of a click log of which the model predicts the probability of a click."""

import glob
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.config.data_section import Data
from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.vocabulary import WORDS
from comera_dist.errors import DataError
from comera_dist.run.predict import InputRows
from data_prep.clicks.columns import ParsedColumns, is_available
from data_prep.clicks.earlier import open_earlier
from data_prep.clicks.features import Dictionary
from data_prep.clicks.records import Layout
from data_prep.clicks.sources import kind_of_source
from data_prep.clicks.splits import unknown_words
from data_prep.files.blocks import BLOCK_BYTES, TextTable
from data_prep.files.skips import Skips
from data_prep.scoring.places import row_number


class ClickRows:
    """A table like the sources of the training data. A column of labels is not read and may be missing.

    `join` is the table that was given to prepare_clicks.py with --join. A manifest may come from anybody, so the user
    names the file again.
    """

    def __init__(self, path: Path, data: Data, skips: Skips, join: Path | None = None, block_bytes: int = BLOCK_BYTES):
        corpus = ClickCorpus(data.corpus)
        settings = _as_arguments(corpus.manifest["parameters"])
        kind, *_ = kind_of_source(settings)
        if not kind.reads_files:
            raise DataError(f"{data.corpus} was generated, so no file has rows like its own; name a run on files")
        if corpus.path / WORDS in corpus.contents.sha256:  # an earlier version listed no such file
            corpus.contents.check(corpus.path / WORDS)
        dense, categories, self._features = open_earlier(corpus.path, kind.hexadecimal)
        named = {**settings, "dense": dense, "categories": categories, "join": _join(settings.get("join"), join)}
        layout: Layout = kind.layout(glob.escape(str(path)), named, block_bytes)
        label = layout.label.column if layout.label else None
        tables = tuple(_without_missing_label(table, label) for table in layout.tables)
        self._layout, self._skips = replace(layout, tables=tables, label=None), skips
        self._path, self._notes = path, list[str]()
        self._check_names()

    def batches(self, size: int) -> Iterator[InputRows]:
        join, knows_C = self._layout.open_join(self._skips), np.zeros(len(self._layout.categories), dtype=bool)
        for block in self._layout.blocks(self._skips, join):
            parsed = ParsedColumns(block, self._skips)
            inputs = self._features.encode(*self._layout.features(parsed))
            good = np.flatnonzero(parsed.good_N)
            knows_C |= (inputs[1][good] > 0).any(axis=0)
            for first in range(0, len(good), size):
                chosen = good[first : first + size]
                dense_BF, categories_BC = (array[chosen] for array in inputs)
                numbers = [row_number(block.place(int(row))) for row in chosen]
                yield InputRows(numbers, (dense_BF, categories_BC.astype(np.int64)))
        # That no row finds its key is no error here: a single row may be of a key that nobody has seen.
        found = zip(self._layout.categories, self._features.tables, knows_C, strict=True)
        knows = {name: k for name, table, k in found if isinstance(table, Dictionary) and table.words}
        unknown = unknown_words(str(self._path), knows)
        self._notes = [*self._layout.notes(), *(join.notes() if join else []), *unknown]

    def notes(self) -> list[str]:
        return self._notes

    def record(self, number: int, probabilities: list[float]) -> dict[str, Any]:
        return {"row": number, "probability": probabilities[0]}

    def _check_names(self) -> None:
        """Raises DataError if the file lacks a column of numbers or of categories."""
        (table,) = self._layout.tables
        present = self._layout.columns_of(table)
        for name in (*self._layout.dense, *self._layout.categories):
            if not is_available(name, present):
                raise DataError(
                    f"{table.path} has no column {name}, only {', '.join(sorted(present))}; give it all columns that "
                    f"the training data have"
                )


def _as_arguments(parameters: dict[str, Any]) -> dict[str, Any]:
    """The arguments of prepare_clicks.py in a manifest, where tuples are lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}


def _join(prepared: str | None, join: Path | None) -> str | None:
    """FILE:COLUMN of the joined table, whose column is that of the `prepared` data."""
    if bool(prepared) != bool(join):
        found = f"joined {prepared!r}" if prepared else "joined no table"
        raise DataError(f"the training data {found}; {'name that file with' if prepared else 'remove'} --join")
    return f"{glob.escape(str(join))}:{prepared.rpartition(':')[2]}" if prepared else None


def _without_missing_label(table: TextTable, label: str | None) -> TextTable:
    """The table without a column for the label if a file without a header has one field fewer than columns."""
    others = tuple(column for column in table.columns if column != label)
    return replace(table, columns=others) if table.count_fields() == len(others) else table
