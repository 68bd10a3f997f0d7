"""Tables read row by row: .jsonl, .tsv, .csv and .parquet files. For data sets of the hub see hub.py.

Bytes that are not UTF-8 become lone surrogates: the reader of a cell can tell, and other cells are not affected.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from comera_dist.errors import DataError, first_line
from data_prep.files.reading import BROKEN_FILE, COMPRESSIONS, counting_breaks, open_decompressed, suffix_of
from data_prep.files.skips import Skips

JSON_LINES = (".jsonl", ".ndjson")
Row = dict[str, Any]  # cells by column
Rows = Iterator[tuple[str, Row]]  # the place of each row, for messages, and the row
# Most writers of .tsv leave quotation marks as they are; some quote a cell that holds any, as in .csv. A cell was
# quoted if it is in marks, holds inner marks, and all inner marks are doubled.
_QUOTED = re.compile(r'"((?:[^"]|"")*""(?:[^"]|"")*)"')
_PARQUET_ROWS = 1024  # chosen: in memory at once
# A value that Python cannot hold, an unknown time zone, or a conversion that pyarrow does not know: its own errors are
# of these classes, too, so a cell does not need pyarrow's names.
_NO_VALUE = (ValueError, OverflowError, KeyError, TypeError, NotImplementedError)
csv.field_size_limit(2**31 - 1)  # by default a cell of more than 131,072 characters breaks into rows of its lines


class Table(NamedTuple):
    name: str
    rows: Rows
    has_columns: bool = True  # the same ones in each row; JSON lines may differ

    def check(self, row: Row, columns: tuple[str, ...], option: str) -> None:
        """Raises DataError if all rows have the same columns and `row` has none of `columns`."""
        if self.has_columns and columns and not any(column in row for column in columns):
            raise DataError(
                f"{self.name} has no column {' or '.join(columns)}; name one of {', '.join(row)} with --{option}"
            )


def format_of(path: Path) -> str:
    """The suffix of the format in which `path` is read.

    JSON lines are often named .json, e.g. in C4 and Dolma. Two lines that are objects are no other JSON.
    """
    suffix = suffix_of(path)
    return JSON_LINES[0] if suffix == ".json" and _begins_with_objects(path) else suffix


def _begins_with_objects(path: Path) -> bool:
    try:
        with open_decompressed(path) as file:
            return all(isinstance(json.loads(file.readline()), dict) for _ in range(2))
    except (*BROKEN_FILE, ValueError, RecursionError):
        return False


def file_table(path: Path, skips: Skips, only: str | None = None) -> Table:
    """The rows of `path`. If the file breaks off, the rows before the break.

    With `only`, the one column that is wanted, no other column of a Parquet file is read.
    """
    format = format_of(path)
    return Table(str(path), _file_rows(path, format, skips, only), has_columns=format not in JSON_LINES)


def check_readable(path: Path) -> None:
    """Raises DataError if `path` is not a table of a known format."""
    if format_of(path) not in (*_READERS, ".parquet"):
        raise DataError(
            f"{path} is of no known format: give a pattern that matches only {', '.join(_READERS)}, .parquet "
            f"(each may end in {', '.join(COMPRESSIONS)})"
        )


def _file_rows(path: Path, format: str, skips: Skips, only: str | None) -> Rows:
    with counting_breaks(path, skips):
        if format == ".parquet":
            yield from _parquet_rows(path, only)
            return
        with open_decompressed(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
            yield from _READERS[format](text, path, skips)


def _parquet_rows(path: Path, only: str | None) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            names = [only] if names.count(only) == 1 else names
            _check_named_once(path, names)
            batches = file.iter_batches(_PARQUET_ROWS, columns=names)
            records = (cells for batch in batches for cells in zip(*batch.columns, strict=True))
            for number, cells in enumerate(records, start=1):
                yield f"{path}: row {number}", dict(zip(names, map(_parquet_value, cells), strict=True))
    except pyarrow.ArrowException as error:
        raise OSError(first_line(error)) from error


def _parquet_value(cell: Any) -> Any:
    """The cell as Python's value. None if there is none, as of a date after 9999, or of bad UTF-8 inside a list."""
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        with suppress(*_NO_VALUE):
            return cell.cast("binary").as_py().decode(errors="surrogateescape")
    except _NO_VALUE:
        pass
    return None


def _json_rows(file: TextIO, path: Path, skips: Skips) -> Rows:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            skips.add("broken_line", where, f"not JSON: {error}")
            continue
        if isinstance(row, dict):
            yield where, row
        else:
            skips.add("broken_line", where, "not a JSON object")


def _tsv_rows(file: TextIO, path: Path, skips: Skips) -> Rows:
    lines = (line.rstrip("\r\n") for line in file)
    records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1) if line)
    for where, row in _named_cells(records, path, skips):
        yield where, {column: _unquoted(cell) for column, cell in row.items()}


def _unquoted(cell: str) -> str:
    quoted = _QUOTED.fullmatch(cell)
    return quoted[1].replace('""', '"') if quoted else cell


def _csv_rows(file: TextIO, path: Path, skips: Skips) -> Rows:
    return _named_cells(_csv_records(file, path, skips), path, skips)


def _csv_records(file: TextIO, path: Path, skips: Skips) -> Iterator[tuple[int, list[str]]]:
    """The rows with their numbers. Each line of what is not CSV is counted: an open quote takes many lines."""
    reader = csv.reader(file, strict=True)
    for number in count(1):  # rows, which may have several lines
        first = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lost = "" if reader.line_num == first else f", lines {first} to {reader.line_num} are lost"
            skips.add("broken_line", f"{path}:{number}", f"not CSV: {error}{lost}", reader.line_num + 1 - first)
            continue
        if record:
            yield number, record


def _named_cells(records: Iterator[tuple[int, list[str]]], path: Path, skips: Skips) -> Rows:
    header = next(records, (1, []))[1]
    _check_named_once(path, header)
    for number, cells in records:
        if len(cells) == len(header):
            yield f"{path}:{number}", dict(zip(header, cells, strict=True))
        else:
            skips.add("broken_line", f"{path}:{number}", f"{len(cells)} cells under a header of {len(header)}")


def _check_named_once(path: Path, names: list[str]) -> None:
    """DataError if two columns have one name: a row would keep the last of them alone. Columns without one are free."""
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise DataError(
            f"{path} has {names.count(twice[0])} columns with the name {twice[0]}; rename all but one of them"
        )


_READERS = {".tsv": _tsv_rows, ".csv": _csv_rows, **dict.fromkeys(JSON_LINES, _json_rows)}
