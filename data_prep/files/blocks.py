"""Delimited text read in blocks of rows by pyarrow, for logs of many rows; see rows.py for any other table.

Words are bytes of any encoding: pyarrow decodes them as Latin-1, in which every byte is a character. Rows that cannot
be read are counted in Skips and left out. Shapes: N rows of a block.
"""

import csv
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyarrow import csv as arrow_csv

from comera_dist.errors import DataError
from data_prep.files.reading import BROKEN_FILE, open_decompressed
from data_prep.files.skips import Skips

FAULTS = ("broken_file", "wrong_fields", "open_quote")
BLOCK_BYTES = 1 << 22  # of text in memory at once; a row may not be longer
_UTF8_MARK = b"\xef\xbb\xbf"
_NAME_COLUMNS = "name them with --columns."


class Block(NamedTuple):
    columns: dict[str, pa.Array]  # words of N rows without the spaces around them, null where missing
    place: Callable[[int], str]  # of one of the N rows, for messages; a header counts as a row, an empty line does not

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class TextTable:
    """One file, compressed or not. `missing` are the words that mean no value; `quoted` fields are CSV's."""

    path: Path
    columns: tuple[str, ...]
    has_header: bool = False
    delimiter: str = ","
    quoted: bool = True
    missing: tuple[str, ...] = ("",)
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def with_header(cls, path: Path, remedy: str = _NAME_COLUMNS, **settings) -> "TextTable":
        """A CSV file whose first row names the columns; the first one may be without a name.

        DataError, with its `remedy`, when another name is missing or one comes twice.
        """
        first = _first_line(path)
        columns = tuple(name.strip() for name in next(csv.reader([first]), ()))
        named = columns[1:] if columns[:1] == ("",) else columns
        if "\0" in first:
            raise DataError(f"{path} holds bytes 0 in its first row, as UTF-16 does; convert it to UTF-8")
        if not named or not all(named) or len(set(named)) < len(named):
            raise DataError(
                f"The first row of {path} is {first.strip()[:80]!r}, which does not name its columns; {remedy}"
            )
        return cls(path, columns, has_header=True, **settings)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are read: not of a first one without a name, as pandas writes its index."""
        return tuple(filter(None, self.columns))

    def blocks(self, skips: Skips) -> Iterator[Block]:
        """The rows with as many fields as there are columns; of a file that breaks off, blocks before the break."""
        rejected, kept = _Rejected(), 0
        try:
            with open_decompressed(self.path) as file:
                if file.peek(len(_UTF8_MARK)).startswith(_UTF8_MARK):  # some programs write it first
                    file.read(len(_UTF8_MARK))
                for batch in self._reader(_Latin1File(file), rejected):
                    first = kept + self.has_header + 1
                    block = Block(
                        dict(zip(self.names, map(self._words, batch.columns), strict=True)),
                        lambda n, first=first: self._place(rejected.skip_over(first + n)),
                    )
                    kept += len(batch)
                    rejected.report(self.path, skips, before=rejected.skip_over(kept + self.has_header))
                    yield _without_open_quotes(block, skips) if self.quoted else block
        except (*BROKEN_FILE, pa.ArrowInvalid) as error:
            kind, why = _fault_of(error)
            skips.add(kind, self._place(rejected.skip_over(kept + self.has_header)), f"after this row {why}")
        rejected.report(self.path, skips)

    def _reader(self, file: "_Latin1File", rejected: "_Rejected") -> arrow_csv.CSVStreamingReader:
        return arrow_csv.open_csv(
            pa.PythonFile(file, mode="r"),
            # Rows have numbers only where one thread reads them.
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=self.block_bytes,
                column_names=self.columns,
                skip_rows=int(self.has_header),
            ),
            arrow_csv.ParseOptions(
                delimiter=self.delimiter, quote_char='"' if self.quoted else False, invalid_row_handler=rejected
            ),
            arrow_csv.ConvertOptions(
                include_columns=self.names,
                column_types=dict.fromkeys(self.columns, pa.string()),
                null_values=self.missing,
                strings_can_be_null=True,
            ),
        )

    def _words(self, column: pa.Array) -> pa.Array:
        """The words as the bytes of the file, without spaces around them where quotes are read; null where missing."""
        if not compute.all(compute.string_is_ascii(column), min_count=0).as_py():
            encoded = column.dictionary_encode()
            raw = [word.encode("latin1") for word in encoded.dictionary.to_pylist()]
            column = pa.array(raw, type=pa.binary()).view(pa.string()).take(encoded.indices)
        if not self.quoted:
            return column
        column = compute.ascii_trim_whitespace(column)
        is_missing = compute.is_in(column, value_set=pa.array(self.missing))
        return compute.if_else(is_missing, pa.scalar(None, pa.string()), column)

    def _place(self, row: int) -> str:
        return f"{self.path}: row {row}"


class _Latin1File:
    """A file as pyarrow must have it, in UTF-8: each of its bytes is the character of that number."""

    closed = False  # pyarrow asks

    def __init__(self, file: BufferedReader):
        self._file, self._ready = file, b""

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer at the end of the file only: a short block would be too short for a row."""
        while len(self._ready) < size and (raw := self._file.read(size)):
            self._ready += raw if raw.isascii() else raw.decode("latin1").encode()
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece


class _Rejected:
    """Rows with too many or too few fields: collected by the reader, which may be blocks ahead."""

    def __init__(self):
        self._numbers, self._new = array("q"), deque()

    def __call__(self, row: arrow_csv.InvalidRow) -> str:
        self._numbers.append(row.number)
        self._new.append((row.number, row.actual_columns, row.expected_columns))
        return "skip"

    def report(self, path: Path, skips: Skips, before: float = math.inf) -> None:
        """Counts rejected rows before row `before` only: the result does not depend on how far the reader is ahead."""
        while self._new and self._new[0][0] < before:
            number, found, expected = self._new.popleft()
            skips.add("wrong_fields", f"{path}: row {number}", f"{found} fields, expected {expected}")

    def skip_over(self, number: int) -> int:
        """Number in the file of the row that would have `number` without the rejected rows before it."""
        before = np.asarray(self._numbers) - np.arange(len(self._numbers))
        return number + int(np.searchsorted(before, number, side="right"))


def _first_line(path: Path) -> str:
    try:
        with open_decompressed(path) as file:
            return file.readline().decode("utf-8-sig", errors="replace")
    except BROKEN_FILE as error:
        raise DataError(f"{path} cannot be read ({error or type(error).__name__}); copy it again") from error


def _fault_of(error: Exception) -> tuple[str, str]:
    if "out of sync" in str(error):  # pyarrow's words for a quote that is open where a block ends
        return "open_quote", "a quote is not closed, and the rest of the file is not read"
    return "broken_file", f"the file breaks off: {error or type(error).__name__}"


def _without_open_quotes(block: Block, skips: Skips) -> Block:
    """Leaves out rows with a line end in a field: its quote was not closed, so the rows after it became part of it."""
    swallowing = np.zeros(block.rows, dtype=bool)
    for column in block.columns.values():
        swallowing |= as_mask(compute.match_substring(column.cast(pa.binary()), "\n"))
    for row in np.flatnonzero(swallowing):
        skips.add("open_quote", block.place(row), "a quoted field goes on over the end of the line")
    return select(block, ~swallowing)


def select(block: Block, keep_N: np.ndarray) -> Block:
    """The rows of `block` where `keep_N` is true."""
    if keep_N.all():
        return block
    rows, mask = np.flatnonzero(keep_N), pa.array(keep_N)
    columns = {name: column.filter(mask) for name, column in block.columns.items()}
    return Block(columns, lambda n: block.place(int(rows[n])))


def as_mask(condition_N: pa.Array) -> np.ndarray:
    """A condition as booleans (N,); null is false."""
    if condition_N.null_count:
        condition_N = compute.fill_null(condition_N, False)
    return condition_N.to_numpy(zero_copy_only=False)
