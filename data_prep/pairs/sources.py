"""Sources of pairs of texts. Another kind is a class like these that is added to Pairs.kinds."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from comera_dist.errors import DataError
from data_prep.files.reading import is_utf8
from data_prep.files.rows import Row, Table
from data_prep.files.skips import Skips
from data_prep.files.sources import Sources
from data_prep.files.table_sources import HubTable, TableFiles
from data_prep.pairs.docstrings import code_paths, left_out, read_functions

SKIPPED = ("empty", "bad_encoding", "missing_column", "unknown_label", "broken_line", "broken_file", "held_out")
_WHOLE = re.compile(r"([+-]?\d+)\.0", re.ASCII)
_NO_LABEL = ("", "-")  # SNLI and MultiNLI write "-" if annotators did not agree


class Pair(NamedTuple):
    """`where` is for messages. `label` is None if the source has no labels. Pairs of one `group` get the same split."""

    where: str
    first: str
    second: str
    label: str | None = None
    group: str | None = None

    @property
    def words(self) -> str:
        """The text that decides the split: the group, or without one both texts."""
        return f"{self.first} \0 {self.second}" if self.group is None else self.group


@dataclass(frozen=True)
class Keys:
    """Column names for the first text, the second text, the label and the group.

    Each is a tuple of alternatives; the first one present in a row is used. Empty `label` or `group`: there are none.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    @classmethod
    def named(cls, *names: str | None) -> "Keys":
        """From a comma list of alternatives for each. Raises DataError if a list is given and names no column."""
        return cls(*map(_alternatives, names))

    def items(self, table: Table, skips: Skips) -> Iterator[Pair]:
        for where, row in table.rows:
            for name, columns in vars(self).items():
                table.check(row, columns, option=f"{name}-key")
            if (pair := pair_of(where, row, self, skips)) is not None:
                yield pair


class Docstrings:
    """Functions of Python packages with their docstrings, without labels. `excluded` packages are left out."""

    usage = "docstrings:PACKAGE[,PACKAGE...], docstrings:installed, docstrings:python-stdlib"

    def __init__(self, names: str, keys: Keys, excluded: Sequence[str] = ()):
        if keys.group:
            raise DataError(f"docstrings:{names} has no columns; remove --group-key, or name tables with files:GLOB")
        self.paths, self.left_out = code_paths(names, excluded), left_out(names, excluded)

    def read(self, skips: Skips) -> Iterator[Pair]:
        return (Pair(*function) for path in self.paths for function in read_functions(path, skips))


class Pairs(Sources[Pair]):
    """Raises DataError if a package of `excluded` is in no source. A kind that leaves some out has `left_out`."""

    kinds = (TableFiles, HubTable, Docstrings)

    def __init__(self, specs: Sequence[str], keys: Keys, excluded: Sequence[str] = ()):
        super().__init__(specs, keys, excluded)
        left_out = {name for source in self.sources for name in getattr(source, "left_out", ())}
        for name in excluded:
            if name not in left_out:
                raise DataError(
                    f"--exclude-package {name} leaves nothing out; name the package in a --source docstrings:, use "
                    "docstrings:installed, or remove the option"
                )

    def fault(self, item: Pair) -> tuple[str, str] | None:
        return fault_of(item)


def fault_of(pair: Pair) -> tuple[str, str] | None:
    """The kind of fault of a pair that cannot be used, and the reason in words."""
    if not all(is_utf8(text) for text in pair[1:] if text):
        return "bad_encoding", "a text, label or group that is not UTF-8"
    if not pair.first.strip() or not pair.second.strip():
        return "empty", "an empty text"
    if pair.group is not None and not pair.group.strip():
        return "empty", "an empty group"
    return ("unknown_label", f"the label is {pair.label!r}") if pair.label in _NO_LABEL else None


def _alternatives(names: str | None) -> tuple[str, ...]:
    """The columns of a comma list. Raises DataError if it is given and names none."""
    found = tuple(name.strip() for name in (names or "").split(",") if name.strip())
    if names is not None and not found:
        raise DataError(f"{names!r} names no column; remove the option, or name the columns that a row may have")
    return found


def pair_of(where: str, row: Row, keys: Keys, skips: Skips) -> Pair | None:
    """The pair in a row of a table. None, counted in `skips`, if the row lacks a column of `keys`."""
    if missing := _missing(row, keys):
        skips.add("missing_column", where, f"no text under {' or '.join(missing)}")
        return None
    first, second = (_value(row, columns) for columns in (keys.first, keys.second))
    return Pair(where, first, second, _name(row, keys.label), _name(row, keys.group))


def _missing(row: Row, keys: Keys) -> tuple[str, ...]:
    """The columns of a text that is not a text, or of a label or group that the row does not have; else ()."""
    for columns in (keys.first, keys.second):
        if not isinstance(_value(row, columns), str):
            return columns
    return next((names for names in (keys.label, keys.group) if names and not any(n in row for n in names)), ())


def _name(row: Row, columns: tuple[str, ...]) -> str | None:
    """The label or group in a cell, "" if it is missing. None without columns.

    Writers such as pandas store a column of whole numbers as floats if one is missing: 1.0 is 1, also in a text file.
    """
    if not columns:
        return None
    value = _value(row, columns)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value)
    return whole[1] if (whole := _WHOLE.fullmatch(text)) else text


def _value(row: Row, columns: tuple[str, ...]) -> Any:
    """The cell of the first of `columns` that has one in this row, neither null nor NaN. A list of words is joined."""
    cells = (row.get(column) for column in columns)
    value = next((cell for cell in cells if cell is not None and cell == cell), None)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value
