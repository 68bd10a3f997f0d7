"""Sources of click logs. Another kind is a class like these that is added to KINDS."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from comera_dist.errors import DataError
from data_prep.clicks.generated import GeneratedClicks
from data_prep.clicks.records import Clicks
from data_prep.clicks.text_files import CriteoClicks, CsvClicks
from data_prep.files.blocks import BLOCK_BYTES
from data_prep.files.skips import Skips
from data_prep.files.sources import check_named_once, chosen_kind

KINDS: tuple[Any, ...] = (CriteoClicks, CsvClicks, GeneratedClicks)
_NAMING = ("label", "columns", "dense", "categories", "join", "missing", "log")  # settings that name columns
_OF_FILES = ("valid_source", "test_source", "dictionaries")


class ClickSource(Protocol):
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    rows: int | None  # None if only reading would tell
    needs_fit: bool
    notes: list[str]  # for the report, complete after `clicks`

    def fit(
        self,
        is_train: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
        skips: Skips,
        advance: Callable[[int], None],
    ) -> None:
        """Learns from the rows whose numbers `is_train` accepts."""

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        """All rows in order, block by block."""

    def facts(self) -> dict[str, Any]:
        """For the manifest: `dense` and `categories` with names and how they were made, and `table_rows`."""

    def words(self) -> dict[str, list[str]]:
        """The words of each feature with a dictionary, in the order of its rows."""


def open_source(settings: dict[str, Any], block_bytes: int = BLOCK_BYTES, kinds: Sequence[Any] = KINDS) -> ClickSource:
    """The log that `settings`, the arguments of the command, describe. Text is read in blocks of `block_bytes`.

    Raises DataError if a source is unknown, named twice, names no file, or has settings that it does not take.
    """
    kind, name, rest = kind_of_source(settings, kinds)
    for key in () if kind.names_columns else _NAMING:
        if settings[key]:
            raise DataError(f"--{key} is for csv sources; remove it, the columns of {name} are known")
    for key in () if kind.reads_files else _OF_FILES:
        if settings[key]:
            raise DataError(f"--{key.replace('_', '-')} is for files; remove it, a {name} source splits its rows")
    check_named_once(list(filter(None, (settings["valid_source"], settings["test_source"]))))
    opened: ClickSource = kind.open(rest, settings, block_bytes)
    return opened


def kind_of_source(settings: dict[str, Any], kinds: Sequence[Any] = KINDS) -> tuple[Any, str, str]:
    """The kind of the log that `settings` name, its name, and the rest of its specification.

    Raises DataError if the source is unknown.
    """
    spec = next(filter(None, (settings.get(key) for key in ("source", "valid_source", "test_source"))))
    kind, rest = chosen_kind(spec, kinds)
    return kind, spec.partition(":")[0], rest
