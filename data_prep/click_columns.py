"""Columns of words read as labels, numbers, hexadecimal hashes and parts of a time. What is none is a counted fault.

Legend: N rows of a block.
"""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import compute

from comera_dist.errors import DataError
from data_prep.skips import Skips
from data_prep.text_table import Block, TextTable, as_mask

FAULTS = ("missing_label", "bad_label", "not_a_number", "not_hexadecimal")
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,8}")
# Of seconds since 1970 in UTC, which began on a Thursday; Monday is 0.
_TIME_PARTS = {
    ".hour": lambda seconds_N: seconds_N // 3600 % 24,
    ".weekday": lambda seconds_N: (seconds_N // 86400 + 3) % 7,
}


@dataclass(frozen=True)
class LabelRule:
    """COLUMN holds 0 and 1; COLUMN=WORD: that word is 1, others 0; COLUMN>=NUMBER: from that number on it is 1."""

    column: str
    operator: str
    value: str

    @classmethod
    def parse(cls, spec: str) -> "LabelRule":
        match = re.fullmatch(r"([^<>=]+)(?:(>=|=)(.+))?", spec)
        if match is None or (match[2] == ">=" and not _NUMBER.fullmatch(match[3].strip().encode())):
            raise DataError(f"--label {spec} is not understood; write COLUMN, COLUMN=WORD or COLUMN>=NUMBER.")
        return cls(match[1].strip(), match[2] or "", (match[3] or "").strip())


class ParsedColumns:
    """Columns of one block. `good_N` says which rows no column has found fault with so far."""

    def __init__(self, block: Block, skips: Skips):
        self._block, self._skips = block, skips
        self.good_N = np.ones(block.rows, dtype=bool)

    def labels(self, rule: LabelRule) -> np.ndarray:
        """int8 (N,): 1 clicked, 0 not; arbitrary where the row is bad."""
        words_N = self._block.columns[rule.column]
        self._reject(as_mask(words_N.is_null()), "missing_label", rule.column)
        if rule.operator == "=":
            return as_mask(compute.equal(words_N, rule.value)).astype(np.int8)
        numbers_N = _parse(words_N)
        is_label_N = np.isfinite(numbers_N) if rule.operator else np.isin(numbers_N, (0, 1))
        self._reject(~is_label_N & as_mask(words_N.is_valid()), "bad_label", rule.column)
        return (numbers_N >= float(rule.value or 1)).astype(np.int8)

    def numbers(self, name: str) -> np.ndarray:
        """float64 (N,), NaN where missing or where the row is bad."""
        words_N = self._block.columns[name]
        numbers_N = _parse(words_N)
        is_bad_N = ~np.isfinite(numbers_N) & as_mask(words_N.is_valid())
        self._reject(is_bad_N, "not_a_number", name)
        return np.where(is_bad_N, np.nan, numbers_N)

    def words(self, name: str) -> pa.Array:
        """Bytes (N,), null where missing. A name that is no column ends with a part of a time, e.g. `when.hour`."""
        if name in self._block.columns:
            return self._block.columns[name].cast(pa.binary())
        column, _, part = name.rpartition(".")
        seconds_N = self.numbers(column)
        part_N = _TIME_PARTS[f".{part}"](np.nan_to_num(seconds_N)).astype(np.int64)
        return pa.array(part_N, mask=np.isnan(seconds_N)).cast(pa.string()).cast(pa.binary())

    def hexadecimals(self, name: str) -> pa.Array:
        """uint32 (N,), null where missing or where the row is bad."""
        words_N = self._block.columns[name]
        prefixed_N = compute.binary_join_element_wise("0x", words_N, "")
        try:
            hashes_N = prefixed_N.cast(pa.uint32())
        except pa.ArrowInvalid:
            found_N = [_to_hash(word) for word in words_N.cast(pa.binary()).to_pylist()]
            hashes_N = pa.array(found_N, type=pa.uint32())
        self._reject(as_mask(words_N.is_valid()) & as_mask(hashes_N.is_null()), "not_hexadecimal", name)
        return hashes_N

    def _reject(self, is_bad_N: np.ndarray, kind: str, name: str) -> None:
        words_N = self._block.columns[name]
        for row in np.flatnonzero(is_bad_N & self.good_N):
            found = words_N[row].cast(pa.binary()).as_py()
            found = "empty" if found is None else repr(found[:40].decode(errors="backslashreplace"))
            self._skips.add(kind, self._block.place(row), f"{name} is {found}")
        self.good_N &= ~is_bad_N


class Join:
    """Columns of a small table, held whole, for the rows that name its key. A row that names none gets missing ones."""

    def __init__(self, table: TextTable, key: str, skips: Skips):
        blocks = [block.columns for block in table.blocks(skips)]
        whole = {name: pa.concat_arrays([block[name] for block in blocks]) for name in table.columns if blocks}
        if not whole:
            raise DataError(f"{table.path} has no row to join; name another file with --join.")
        self._key, self._keys = key, whole.pop(key)
        self._columns = whole

    def add_to(self, block: Block) -> Block:
        # The first of equal keys counts; a missing key would match a missing key.
        keys_N = block.columns[self._key]
        row_N = compute.if_else(keys_N.is_valid(), compute.index_in(keys_N, value_set=self._keys), None)
        added = {name: column.take(row_N) for name, column in self._columns.items()}
        return block._replace(columns={**block.columns, **added})


def is_available(name: str, columns: set[str]) -> bool:
    """Whether `name` is a column, or a part of the time in one."""
    column, dot, part = name.rpartition(".")
    return name in columns or (column in columns and dot + part in _TIME_PARTS)


def _parse(words_N: pa.Array) -> np.ndarray:
    """float64 (N,), NaN where missing or no number, infinite where it has no finite float."""
    try:
        return words_N.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return np.array([_to_number(word) for word in words_N.cast(pa.binary()).to_pylist()])


def _to_number(word: bytes | None) -> float:
    return float(word) if word is not None and _NUMBER.fullmatch(word) else float("nan")


def _to_hash(word: bytes | None) -> int | None:
    return int(word, 16) if word is not None and _HEXADECIMAL.fullmatch(word) else None
