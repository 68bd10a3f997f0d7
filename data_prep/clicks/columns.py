"""Columns of words read as labels, numbers, hexadecimal hashes and parts of a time; other words are counted faults.

A time is a number, seconds since 1970, or a word of ISO 8601: 2023-11-14, with hours and minutes after a T or a space,
seconds and their fraction, and an offset from UTC or a Z. A time without an offset is taken as UTC. Hours and weekdays
are of times up to the year 9999: later ones are milliseconds.

Shapes: N rows of a block.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from comera_dist.errors import DataError
from data_prep.files.blocks import Block, TextTable, as_mask
from data_prep.files.skips import Skips

FAULTS = ("missing_label", "bad_label", "not_a_number", "not_hexadecimal")
_LARGEST = float(np.finfo(np.float32).max)  # of a model's input
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST_SECONDS = 2**62  # fits an int64, and is beyond every time that a log means
_LAST_SECOND = 253_402_300_799  # of the year 9999: more are milliseconds
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,8}")
_OFFSET = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
_TIME = re.compile(rf"^\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?{_OFFSET}?)?$".encode(), re.ASCII)
_ANY = re.compile(b"")
_WITH_OFFSET = rf":\d\d(?:\.\d+)?{_OFFSET}$"
_MICROSECONDS = 1_000_000
# Parts of a time. 1 January 1970 was a Thursday; Monday is 0.
_TIME_PARTS = {
    ".seconds": lambda seconds_N: seconds_N,
    ".hour": lambda seconds_N: seconds_N // 3600 % 24,
    ".weekday": lambda seconds_N: (seconds_N // 86400 + 3) % 7,
}


@dataclass(frozen=True)
class LabelRule:
    """COLUMN holds 0 and 1; COLUMN=WORD|WORD: these words are 1, others 0; COLUMN>=NUMBER: 1 from that number on."""

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, spec: str) -> "LabelRule":
        match = re.fullmatch(r"([^<>=]+)(?:(>=|=)(.+))?", spec)
        if match is None or (match[2] == ">=" and not _NUMBER.fullmatch(match[3].strip().encode())):
            raise DataError(
                f"--label {spec} is not understood; write COLUMN, COLUMN=WORD, COLUMN=WORD|WORD or COLUMN>=NUMBER"
            )
        return cls(match[1].strip(), match[2] or "", (match[3] or "").strip())


class ParsedColumns:
    """Columns of one block. `good_N` is true for rows without a fault in the columns parsed so far."""

    def __init__(self, block: Block, skips: Skips):
        self._block, self._skips = block, skips
        self.good_N = np.ones(block.rows, dtype=bool)

    def labels(self, rule: LabelRule) -> NDArray[np.int8]:
        """1 clicked, 0 not (N,); arbitrary if the row is bad."""
        words_N = self._block.columns[rule.column]
        self._reject(as_mask(words_N.is_null()), "missing_label", rule.column)
        if rule.operator == "=":
            ones = [word.strip() for word in rule.value.split("|")]
            return as_mask(compute.is_in(words_N, value_set=pa.array(ones))).astype(np.int8)
        numbers_N = _parse(words_N)
        is_label_N = np.isfinite(numbers_N) if rule.operator else np.isin(numbers_N, (0, 1))
        self._reject(~is_label_N & as_mask(words_N.is_valid()), "bad_label", rule.column)
        return (numbers_N >= float(rule.value or 1)).astype(np.int8)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """(N,), NaN if missing or if the row is bad. A name that is not a column is a part of a time."""
        if name not in self._block.columns:
            return self._time_parts(name)
        words_N = self._block.columns[name]
        return self._finite(_parse(words_N), name, time_hint=f", a time: name {name}.seconds instead")

    def words(self, name: str) -> pa.Array:
        """Bytes (N,), null if missing. A name that is not a column is a part of a time, e.g. `when.hour`."""
        if name in self._block.columns:
            return self._block.columns[name].cast(pa.binary())
        part_N = self._time_parts(name)
        whole_N = np.nan_to_num(part_N).clip(-_MOST_SECONDS, _MOST_SECONDS).astype(np.int64)
        return pa.array(whole_N, mask=np.isnan(part_N)).cast(pa.string()).cast(pa.binary())

    def hexadecimals(self, name: str) -> pa.Array:
        """uint32 (N,), null if missing or if the row is bad."""
        words_N = self._block.columns[name]
        prefixed_N = compute.binary_join_element_wise("0x", words_N, "")
        try:
            hashes_N = prefixed_N.cast(pa.uint32())
        except pa.ArrowInvalid:
            found_N = [_to_hash(word) for word in words_N.cast(pa.binary()).to_pylist()]
            hashes_N = pa.array(found_N, type=pa.uint32())
        self._reject(as_mask(words_N.is_valid()) & as_mask(hashes_N.is_null()), "not_hexadecimal", name)
        return hashes_N

    def _time_parts(self, name: str) -> NDArray[np.float64]:
        """A part of a column of Unix times or ISO 8601 times (N,), NaN if missing or if the row is bad."""
        column, _, part = name.rpartition(".")
        words_N = self._block.columns[column]
        seconds_N = _parse(words_N)
        if np.isnan(seconds_N).any():
            seconds_N = np.where(np.isnan(seconds_N), _to_seconds(words_N), seconds_N)
        seconds_N = self._finite(seconds_N, column)
        if part != "seconds":
            is_late_N = np.abs(seconds_N) > _LAST_SECOND
            late = ", beyond the year 9999 in seconds: divide milliseconds by 1,000"
            self._reject(is_late_N, "not_a_number", column, late, hinted=_ANY)
            seconds_N = np.where(is_late_N, np.nan, seconds_N)
        part_N: NDArray[np.float64] = _TIME_PARTS[f".{part}"](seconds_N)
        return part_N

    def _finite(self, numbers_N: NDArray[np.float64], name: str, time_hint: str = "") -> NDArray[np.float64]:
        """`numbers_N`. A word that is no number of 32 bits is NaN and its row bad; `time_hint` is said of times."""
        is_number_N = np.abs(numbers_N) <= _LARGEST
        is_bad_N = ~is_number_N & as_mask(self._block.columns[name].is_valid())
        self._reject(is_bad_N, "not_a_number", name, time_hint)
        return np.where(is_bad_N, np.nan, numbers_N)

    def _reject(
        self,
        is_bad_N: NDArray[np.bool_],
        kind: str,
        name: str,
        hint: str = "",
        hinted: re.Pattern[bytes] = _TIME,
    ) -> None:
        """Counts these rows, which are bad now; `hint` is said of words of the form `hinted`."""
        words_N = self._block.columns[name]
        for row in np.flatnonzero(is_bad_N & self.good_N):
            found = words_N[row].cast(pa.binary()).as_py()
            shown = "empty" if found is None else repr(found[:40].decode(errors="backslashreplace"))
            said = hint if hint and hinted.match(found) else ""
            self._skips.add(kind, self._block.place(int(row)), f"{name} is {shown}{said}")
        self.good_N &= ~is_bad_N


class Join:
    """Adds the columns of a small table, held in memory, by a key. A row with no key or another gets missing words."""

    def __init__(self, table: TextTable, key: str, skips: Skips):
        blocks = [block.columns for block in table.blocks(skips)]
        whole = {name: pa.concat_arrays([block[name] for block in blocks]) for name in table.names if blocks}
        if not whole:
            raise DataError(f"{table.path} has no row to join; name another file with --join")
        self._key, self._keys, self._path = key, whole.pop(key), table.path
        self._columns = whole
        self._rows = self._missed = 0  # so far, of the log: rows, and those that found no key

    def add_to(self, block: Block) -> Block:
        # index_in finds the first of equal keys. It would match a missing key to a missing key.
        keys_N = block.columns[self._key]
        row_N = compute.if_else(keys_N.is_valid(), compute.index_in(keys_N, value_set=self._keys), None)
        self._rows += block.rows
        self._missed += row_N.null_count
        added = {name: column.take(row_N) for name, column in self._columns.items()}
        return block._replace(columns={**block.columns, **added})

    def check(self) -> None:
        """Raises DataError if there were rows so far and none found its key."""
        if self._missed == self._rows > 0:
            raise DataError(
                f"none of {self._rows:,} rows found its {self._key!r} in {self._path}; name a file with the same keys "
                "with --join"
            )

    def notes(self) -> list[str]:
        """Lines for the report on the rows so far."""
        repeated = len(self._keys) - self._keys.null_count - compute.count_distinct(self._keys).as_py()
        option = f"--join {self._path}:{self._key}"
        missed = f"{option}: {self._missed:,} of {self._rows:,} rows found no key"
        again = f"{option}: {repeated:,} of {len(self._keys):,} rows of the file repeat a key; the first counts"
        return [missed] * bool(self._missed) + [again] * bool(repeated)


def is_available(name: str, columns: set[str]) -> bool:
    """Whether `name` is a column, or a part of the time in one."""
    column, dot, part = name.rpartition(".")
    return name in columns or (column in columns and dot + part in _TIME_PARTS)


def _parse(words_N: pa.Array) -> NDArray[np.float64]:
    """(N,), NaN if missing or not a number, infinite if too large for a float."""
    try:
        numbers_N: NDArray[np.float64] = words_N.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return numbers_N
    except pa.ArrowInvalid:
        return np.array([_to_number(word) for word in words_N.cast(pa.binary()).to_pylist()])


def _to_number(word: bytes | None) -> float:
    return float(word) if word is not None and _NUMBER.fullmatch(word) else float("nan")


def _to_hash(word: bytes | None) -> int | None:
    return int(word, 16) if word is not None and _HEXADECIMAL.fullmatch(word) else None


def _to_seconds(words_N: pa.Array) -> NDArray[np.float64]:
    """(N,) of ISO 8601 times, NaN if missing, of another form, or not a day of the calendar."""
    is_time_N = compute.match_substring_regex(words_N.cast(pa.binary()), _TIME.pattern.decode())
    times_N = compute.if_else(is_time_N, words_N, pa.scalar(None, words_N.type))
    times_N = compute.replace_substring_regex(times_N, r"(\.\d{6})\d+", r"\1")  # microseconds are exact enough
    has_offset_N = compute.match_substring_regex(times_N, _WITH_OFFSET)
    seconds_N = np.full(len(words_N), np.nan)
    for offset, kind in ((False, pa.timestamp("us")), (True, pa.timestamp("us", "UTC"))):
        chosen_N = compute.fill_null(compute.equal(has_offset_N, offset), False)
        seconds_N[chosen_N.to_numpy(zero_copy_only=False)] = _cast(times_N.filter(chosen_N), kind)
    return seconds_N


def _cast(times_N: pa.Array, kind: pa.DataType) -> NDArray[np.float64]:
    try:
        found_N = times_N.cast(kind)
    except pa.ArrowInvalid:
        found_N = pa.array([_cast_one(word, kind) for word in times_N], type=kind)
    microseconds_N: NDArray[Any] = found_N.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return microseconds_N.astype(np.float64) / _MICROSECONDS


def _cast_one(word: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    try:
        return word.cast(kind)
    except pa.ArrowInvalid:
        return None
