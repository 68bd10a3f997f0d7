"""Rows of tables with a header line (.tsv, .csv) and of JSON lines (.jsonl), also compressed, by column.

Bytes that are not UTF-8 become lone surrogates, so that whoever needs the cell can tell.
"""

import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from comera_dist.errors import DataError
from data_prep.formats import COMPRESSIONS, open_decompressed
from data_prep.skips import Skips

_BROKEN_FILE = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Some writers quote a cell of a .tsv that has quotation marks, as in a .csv; most leave all marks as they are. A cell
# in marks of which all inner ones are doubled, and some are there, was quoted.
_QUOTED = re.compile(r'"((?:[^"]|"")*""(?:[^"]|"")*)"')


def table_suffix(path: Path) -> str:
    """Suffix that decides how `path` is read, compression taken off; DataError when it is unknown."""
    suffix = Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix
    if suffix not in _READERS:
        raise DataError(
            f"{path} is of no known format: give a pattern that matches only {', '.join(_READERS)} "
            f"(each may end in {', '.join(COMPRESSIONS)})."
        )
    return suffix


def read_rows(path: Path, skips: Skips) -> Iterator[tuple[str, dict]]:
    """(where, row) of each row of `path`. Of a file that breaks off, those before the break."""
    try:
        with open_decompressed(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
            yield from _READERS[table_suffix(path)](text, path, skips)
    except _BROKEN_FILE as error:
        skips.add("broken_file", str(path), str(error) or type(error).__name__)


def _json_rows(file: TextIO, path: Path, skips: Skips) -> Iterator[tuple[str, dict]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            skips.add("broken_line", f"{path}:{number}", f"not JSON: {error}")
            continue
        if isinstance(row, dict):
            yield f"{path}:{number}", row
        else:
            skips.add("broken_line", f"{path}:{number}", "no JSON object")


def _tsv_rows(file: TextIO, path: Path, skips: Skips) -> Iterator[tuple[str, dict]]:
    lines = (line.rstrip("\r\n") for line in file)
    records = ((number, line.split("\t")) for number, line in enumerate(lines, start=1) if line)
    for where, row in _named_cells(records, path, skips):
        yield where, {column: _unquoted(cell) for column, cell in row.items()}


def _csv_rows(file: TextIO, path: Path, skips: Skips) -> Iterator[tuple[str, dict]]:
    return _named_cells(_csv_records(file, path, skips), path, skips)


def _csv_records(file: TextIO, path: Path, skips: Skips) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(file, strict=True)
    while True:
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            skips.add("broken_line", f"{path}:{reader.line_num}", f"not CSV: {error}")
            continue
        if record:
            yield reader.line_num, record


def _named_cells(records: Iterator[tuple[int, list[str]]], path: Path, skips: Skips) -> Iterator[tuple[str, dict]]:
    header = next(records, (1, []))[1]
    for number, cells in records:
        if len(cells) == len(header):
            yield f"{path}:{number}", dict(zip(header, cells, strict=True))
        else:
            skips.add("broken_line", f"{path}:{number}", f"{len(cells)} cells under a header of {len(header)}")


def _unquoted(cell: str) -> str:
    quoted = _QUOTED.fullmatch(cell)
    return quoted[1].replace('""', '"') if quoted else cell


_READERS = {".tsv": _tsv_rows, ".csv": _csv_rows, ".jsonl": _json_rows}
