"""Where pairs of texts come from: `files:GLOB`, `hub:NAME[:CONFIG[:SPLIT]]` or `docstrings:PACKAGES`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from comera_dist.errors import DataError
from data_prep.docstrings import code_paths, read_functions
from data_prep.pair_tables import read_rows, table_suffix
from data_prep.skips import Skips
from data_prep.sources import glob_paths, has_lone_surrogate, hub_rows, parse_hub

PAIR_KINDS = ("empty", "bad_encoding", "missing_column", "unknown_label", "broken_line", "broken_file", "held_out")
_NO_LABEL = ("", "-")  # "-" is how SNLI and MultiNLI write that annotators did not agree


class Pair(NamedTuple):
    """`label` is None where the source has no labels; `where` is for reports. Pairs of one `group` stay together."""

    where: str
    first: str
    second: str
    label: str | None = None
    group: str | None = None  # without one a pair may be parted from all others


@dataclass(frozen=True)
class Keys:
    """Columns of both texts, label and group (): none, each with alternatives of which a row's first counts."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    label: tuple[str, ...] = ()
    group: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairSource:
    """A named stream of pairs, always in the same order. Built by `parse_pair_source`."""

    keys: Keys
    tables: tuple[Path, ...] = ()
    modules: tuple[Path, ...] = ()
    hub: tuple[str, str | None, str] | None = None

    def pairs(self, skips: Skips) -> Iterator[Pair]:
        """Pairs of texts that hold more than white space; all others are counted in `skips`, of PAIR_KINDS.

        DataError when a table or a data set of the hub lacks a column.
        """
        for pair in self._read(skips):
            if any(has_lone_surrogate(text) for text in pair[1:] if text):
                skips.add("bad_encoding", pair.where, "a text, label or group that is not UTF-8")
            elif not pair.first.strip() or not pair.second.strip():
                skips.add("empty", pair.where, "an empty text")
            elif pair.group is not None and not pair.group.strip():
                skips.add("empty", pair.where, "an empty group")
            elif pair.label in _NO_LABEL:
                skips.add("unknown_label", pair.where, f"the label is {pair.label!r}")
            else:
                yield pair

    def _read(self, skips: Skips) -> Iterator[Pair]:
        for path in self.modules:
            yield from (Pair(*function) for function in read_functions(path, skips))
        for where, row in self._rows(skips):
            first, second = _text(row, self.keys.first), _text(row, self.keys.second)
            missing = self._missing(row, first, second)
            if missing:
                skips.add("missing_column", where, f"no text under {' or '.join(missing)}")
            else:
                yield Pair(where, first, second, self._label(row), self._group(row))

    def _rows(self, skips: Skips) -> Iterator[tuple[str, dict]]:
        for path in self.tables:
            for where, row in read_rows(path, skips):
                if table_suffix(path) != ".jsonl":  # rows of which may differ in columns
                    self._check_columns(row, str(path))
                yield where, row
        if self.hub:
            for where, row in hub_rows(*self.hub):
                self._check_columns(row, f"Data set {self.hub[0]}")
                yield where, row

    def _missing(self, row: dict, first: str | None, second: str | None) -> tuple[str, ...]:
        if first is None or second is None:
            return self.keys.second if first is not None else self.keys.first
        return next((keys for keys in (self.keys.label, self.keys.group) if not _has_column(row, keys)), ())

    def _label(self, row: dict) -> str | None:
        """None where no labels are asked for, "" where the row has none."""
        label = _cell(row, self.keys.label)
        return (None if not self.keys.label else "") if label is None else str(label)

    def _group(self, row: dict) -> str | None:
        """None where no groups are asked for, "" where the row has none."""
        if not self.keys.group:
            return None
        text, cell = _text(row, self.keys.group), _cell(row, self.keys.group)
        return text if text is not None else "" if cell is None else str(cell)

    def _check_columns(self, row: dict, name: str) -> None:
        for option, keys in vars(self.keys).items():
            if not _has_column(row, keys):
                raise DataError(
                    f"{name} has no column {' or '.join(keys)}; name one of {', '.join(row)} with --{option}-key."
                )


def parse_pair_source(spec: str, keys: Keys, excluded: tuple[str, ...] = ()) -> PairSource:
    """`excluded` names packages of docstrings. DataError when `spec` is of no kind, or names what is not there."""
    kind, _, rest = spec.partition(":")
    if kind == "files" and rest:
        return PairSource(keys, tables=glob_paths(rest, table_suffix))
    if kind == "hub" and rest:
        return PairSource(keys, hub=parse_hub(rest))
    if kind == "docstrings" and rest:
        if keys.group:
            raise DataError(f"Source {spec} has no columns; remove --group-key, or name tables with files:GLOB.")
        return PairSource(keys, modules=code_paths(rest, excluded))
    raise DataError(
        f"Source {spec!r} is unknown; use files:GLOB, hub:NAME[:CONFIG[:SPLIT]], docstrings:PACKAGE[,PACKAGE...], "
        "docstrings:installed or docstrings:python-stdlib."
    )


def _has_column(row: dict, keys: tuple[str, ...]) -> bool:
    """Whether `row` has one of `keys`, where there are any."""
    return not keys or any(key in row for key in keys)


def _cell(row: dict, keys: tuple[str, ...]):
    return next((row[key] for key in keys if key in row), None)


def _text(row: dict, keys: tuple[str, ...]) -> str | None:
    """Text of the first of `keys` that `row` has; words of a list are joined. None where it holds no text."""
    value = _cell(row, keys)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else None
