"""Delimited text read by pyarrow in blocks of rows, for logs of many rows; rows.py reads any other table.

Words are bytes of any encoding: pyarrow decodes them as Latin-1, in which every byte is a character. Rows that cannot
be read are counted in Skips and left out; an open quote counts once for each line that it costs.

Shapes: N rows of a block.
"""

import csv
import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from comera_dist.errors import DataError
from data_prep.files.reading import BROKEN_FILE, open_decompressed
from data_prep.files.skips import Skips

FAULTS = ("broken_file", "wrong_fields", "open_quote")
LONGEST_NAME = 1000  # of a column, in characters; chosen: a longer one is text
BLOCK_BYTES = 1 << 22  # chosen: of text in memory at once; a row may not be longer
_UTF8_MARK = b"\xef\xbb\xbf"
_OPEN_QUOTE = "a quoted field goes on over the end of the line"


class Block(NamedTuple):
    columns: dict[str, pa.Array]  # words of N rows without the spaces around them, null where missing
    place: Callable[[int], str]  # of one of the N rows, for messages; a header counts as a row, an empty line does not

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class TextTable:
    """One file, compressed or not. `missing` lists the words for no value; `quoted`: fields may be quoted as in CSV."""

    path: Path
    columns: tuple[str, ...]
    has_header: bool = False
    delimiter: str = ","
    quoted: bool = True
    missing: tuple[str, ...] = ("",)
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def with_header(cls, path: Path, remedy: str = "name them with --columns", **settings: Any) -> "TextTable":
        """A CSV file whose first row names the columns. Only the first column may have no name.

        Raises DataError, with this `remedy`, if another name is missing, too long or occurs twice.
        """
        first = _first_line(path)
        columns = _cells(first)
        named = columns[1:] if columns[:1] == ("",) else columns
        if "\0" in first:
            raise DataError(f"{path} holds bytes 0 in its first row, as UTF-16 does; convert it to UTF-8")
        if not named or not all(0 < len(name) <= LONGEST_NAME for name in named) or len(set(named)) < len(named):
            raise DataError(
                f"the first row of {path} is {first.strip()[:80]!r}, which does not name its columns; {remedy}"
            )
        return cls(path, columns, has_header=True, **settings)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are read. A first column without a name, such as pandas' index, is not."""
        return tuple(filter(None, self.columns))

    def count_fields(self) -> int:
        """Fields of the first row."""
        first = _first_line(self.path)
        return len(_cells(first)) if self.quoted else first.count(self.delimiter) + 1

    def blocks(self, skips: Skips) -> Iterator[Block]:
        """The rows with as many fields as there are columns. If the file breaks off, the blocks before the break."""
        rejected, kept = _Rejected(), 0
        try:
            with open_decompressed(self.path) as file:
                if file.peek(len(_UTF8_MARK)).startswith(_UTF8_MARK):
                    file.read(len(_UTF8_MARK))
                for batch in self._reader(_Latin1File(file), rejected):
                    first = kept + self.has_header + 1
                    block = Block(
                        dict(zip(self.names, map(self._words, batch.columns), strict=True)),
                        partial(self._place_of, rejected, first),
                    )
                    kept += len(batch)
                    rejected.report(self.path, skips, before=rejected.skip_over(kept + self.has_header))
                    if self.quoted:
                        line_ends_N = _line_ends(block)
                        rejected.lines += int(line_ends_N.sum())
                        block = _without_open_quotes(block, line_ends_N, skips)
                    yield block
        except (*BROKEN_FILE, pa.ArrowInvalid) as error:
            kind, why = _fault_of(error)
            read = self.has_header + kept + rejected.lines  # too many where a quote took in empty lines
            lost = max(1, self._count_lines() - read) if kind == "open_quote" else 1
            skips.add(kind, self._place(rejected.skip_over(kept + self.has_header)), f"after this row {why}", lost)
        rejected.report(self.path, skips)

    def _count_lines(self) -> int:
        """Lines that are not empty, as far as the file can be read."""
        lines = 0
        with suppress(*BROKEN_FILE), open_decompressed(self.path) as file:
            for line in file:
                lines += line not in (b"\n", b"\r\n")
        return lines

    def _reader(self, file: "_Latin1File", rejected: "_Rejected") -> arrow_csv.CSVStreamingReader:
        return arrow_csv.open_csv(
            pa.PythonFile(file, mode="r"),
            arrow_csv.ReadOptions(
                use_threads=False,  # pyarrow numbers rejected rows only if one thread reads
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
        """The words as bytes of the file, null where missing. If fields may be quoted, without the spaces around."""
        if not compute.all(compute.string_is_ascii(column), min_count=0).as_py():
            encoded = column.dictionary_encode()
            raw = [word.encode("latin1") for word in encoded.dictionary.to_pylist()]
            column = pa.array(raw, type=pa.binary()).view(pa.string()).take(encoded.indices)
        if not self.quoted:
            return column
        column = compute.ascii_trim_whitespace(column)
        is_missing = compute.is_in(column, value_set=pa.array(self.missing))
        return compute.if_else(is_missing, pa.scalar(None, pa.string()), column)

    def _place_of(self, rejected: "_Rejected", first: int, row: int) -> str:
        """Place of the row number `row` of a block whose first row is `first`, without rejected ones."""
        return self._place(rejected.skip_over(first + row))

    def _place(self, row: int) -> str:
        return f"{self.path}: row {row}"


class _Latin1File:
    """A file converted from Latin-1 to the UTF-8 that pyarrow reads."""

    closed = False  # pyarrow reads this attribute

    def __init__(self, file: BufferedReader):
        self._file, self._ready = file, b""

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end of the file: a short block would be too short for a row."""
        while len(self._ready) < size and (raw := self._file.read(size)):
            self._ready += raw if raw.isascii() else raw.decode("latin1").encode()
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece


class _Rejected:
    """Rows with too many or too few fields, collected by the reader, which may be blocks ahead."""

    def __init__(self) -> None:
        self._before = array("q")  # of each rejected row: the rows before it that were not rejected, and 1
        self._new = deque[tuple[int, int, int, int]]()
        self.lines = 0  # of rejected rows, and those that an open quote made part of another row

    def __call__(self, row: arrow_csv.InvalidRow) -> str:
        lines = 1 + row.text.count("\n")
        self.lines += lines
        self._before.append(row.number - len(self._before))
        self._new.append((row.number, lines, row.actual_columns, row.expected_columns))
        return "skip"

    def report(self, path: Path, skips: Skips, before: float = math.inf) -> None:
        """Counts rejected rows before row `before` only, so the result does not depend on how far ahead pyarrow is."""
        while self._new and self._new[0][0] < before:
            number, lines, found, expected = self._new.popleft()
            place = f"{path}: row {number}"
            if lines > 1:
                skips.add("open_quote", place, _OPEN_QUOTE, lines)
            else:
                skips.add("wrong_fields", place, f"{found} fields, expected {expected}")

    def skip_over(self, number: int) -> int:
        """The number in the file of the row that is number `number` among the rows that were not rejected."""
        return number + bisect_right(self._before, number)


def _first_line(path: Path) -> str:
    try:
        with open_decompressed(path) as file:
            return file.readline().decode("utf-8-sig", errors="replace")
    except BROKEN_FILE as error:
        raise DataError(f"{path} cannot be read ({error or type(error).__name__}); copy it again") from error


def _cells(line: str) -> tuple[str, ...]:
    """The cells of one line without the spaces around them; none if the line is not CSV."""
    try:
        return tuple(cell.strip() for cell in next(csv.reader([line]), ()))
    except csv.Error:  # a line end that is not at the end
        return ()


def _fault_of(error: Exception) -> tuple[str, str]:
    if "out of sync" in str(error):  # pyarrow's message if a quote is open at the end of a block
        return "open_quote", "a quote is not closed, and the rest of the file is not read"
    return "broken_file", f"the file breaks off: {error or type(error).__name__}"


def _line_ends(block: Block) -> NDArray[np.int64]:
    """Line ends inside the fields of each row (N,)."""
    line_ends_N = np.zeros(block.rows, dtype=np.int64)
    for column in block.columns.values():
        words_N = column.cast(pa.binary())
        if compute.any(compute.match_substring(words_N, "\n")).as_py():  # to look for one is faster than to count
            line_ends_N += compute.fill_null(compute.count_substring(words_N, "\n"), 0).to_numpy()
    return line_ends_N


def _without_open_quotes(block: Block, line_ends_N: NDArray[np.int64], skips: Skips) -> Block:
    """Leaves out rows with a line end in a field: an unclosed quote made later lines part of it."""
    if not line_ends_N.any():
        return block
    for row in np.flatnonzero(line_ends_N):
        skips.add("open_quote", block.place(int(row)), _OPEN_QUOTE, 1 + int(line_ends_N[row]))
    rows, mask = np.flatnonzero(line_ends_N == 0), pa.array(line_ends_N == 0)
    columns = {name: column.filter(mask) for name, column in block.columns.items()}
    return Block(columns, lambda n: block.place(int(rows[n])))


def as_mask(condition_N: pa.Array) -> NDArray[np.bool_]:
    """A condition as booleans; null is false."""
    if condition_N.null_count:
        condition_N = compute.fill_null(condition_N, False)
    mask_N: NDArray[np.bool_] = condition_N.to_numpy(zero_copy_only=False)
    return mask_N
