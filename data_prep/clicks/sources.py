"""Sources of click logs. A further kind is a class like these and its place in KINDS."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from comera_dist.errors import DataError
from data_prep.clicks.generated import GeneratedClicks
from data_prep.clicks.records import Clicks
from data_prep.clicks.text_files import CriteoClicks, CsvClicks
from data_prep.files.blocks import BLOCK_BYTES
from data_prep.files.skips import Skips
from data_prep.files.sources import chosen_kind

KINDS = (CriteoClicks, CsvClicks, GeneratedClicks)
_NAMING = ("label", "columns", "dense", "categories", "join", "missing", "log")  # of columns
_OF_FILES = ("valid_source", "test_source", "dictionaries")


class ClickSource(Protocol):
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    rows: int | None  # as far as known before reading
    needs_fit: bool
    notes: list[str]  # for the report

    def fit(self, is_train: Callable[[np.ndarray], np.ndarray], skips: Skips, advance: Callable[[int], None]) -> None:
        """Learns from the rows whose numbers `is_train` accepts."""

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        """All rows in order, block by block."""

    def facts(self) -> dict:
        """For the manifest: `dense` and `categories` with names and how they were made, and `table_rows`."""

    def words(self) -> dict[str, list[str]]:
        """For each feature with a dictionary the words of its rows."""


def open_source(settings: dict, block_bytes: int = BLOCK_BYTES, kinds: Sequence[type] = KINDS) -> ClickSource:
    """The log that `settings`, the arguments of the command, describe; text is read in blocks of `block_bytes`.

    DataError when a source is unknown, names no file, or has settings that it does not take.
    """
    spec = next(filter(None, (settings[key] for key in ("source", "valid_source", "test_source"))))
    kind, rest = chosen_kind(spec, kinds)
    name = spec.partition(":")[0]
    for key in () if kind.names_columns else _NAMING:
        if settings[key]:
            raise DataError(f"--{key} is for csv sources; remove it, the columns of {name} are known.")
    for key in () if kind.reads_files else _OF_FILES:
        if settings[key]:
            raise DataError(f"--{key.replace('_', '-')} is for files; remove it, a {name} source splits its rows")
    return kind.open(rest, settings, block_bytes)
