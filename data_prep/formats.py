"""Documents of one file: JSON lines, Parquet, or text of any ending; all but Parquet also compressed.

In a .txt file a line that holds only `<|endoftext|>` ends a document, so that one file can carry a whole library; a
separator of the user's does so in every text file. The line itself belongs to no document. Text is decoded as UTF-8 and
kept to the byte: line ends are not translated.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from comera_dist.errors import DataError
from data_prep.skips import BINARY, Skips

COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")
_JSON_LINES = (".jsonl", ".ndjson")
_DECLARED_TEXT = (".txt", ".md", ".py")  # whatever they hold; files of other endings are looked into
_END_OF_DOCUMENT = re.compile(re.escape("<|endoftext|>"))
_LOOKED_AT = 8000  # bytes in which git looks for a NUL to tell binary files
_BROKEN_FILE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def format_of(path: Path) -> str:
    """Suffix that decides how `path` is read, in lower case, compression taken off."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_documents(
    path: Path, text_key: str, skips: Skips, separator: re.Pattern | None = None
) -> Iterator[tuple[str, str]]:
    """(where, text) of each document of `path`. Of a file that breaks off, those before the break.

    In text, a line that `separator` matches as a whole ends a document.
    """
    suffix = format_of(path)
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(path, text_key, skips)
        elif suffix in _JSON_LINES:
            with open_decompressed(path) as file:
                yield from _json_lines(file, path, text_key, skips)
        elif suffix not in _DECLARED_TEXT and _is_binary(path):
            skips.add(BINARY, str(path), "a binary file")
        else:
            with open_decompressed(path) as file:
                yield from _texts(file, path, separator or (_END_OF_DOCUMENT if suffix == ".txt" else None), skips)
    except _BROKEN_FILE as error:
        skips.add("broken_file", str(path), str(error) or type(error).__name__)


def open_decompressed(path: Path) -> BinaryIO:
    suffix = path.suffix.lower()
    if suffix == ".zst":
        import pyarrow  # its reader notices a file that was cut short, the one of `zstandard` does not

        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    opener = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}.get(suffix, open)
    return opener(path, "rb")


def _is_binary(path: Path) -> bool:
    with open_decompressed(path) as file:
        return b"\0" in file.read(_LOOKED_AT)


def _texts(file: BinaryIO, path: Path, separator: re.Pattern | None, skips: Skips) -> Iterator[tuple[str, str]]:
    for where, raw in _separated(file, path, separator) if separator else [(str(path), file.read())]:
        text = _decode(raw, where, skips)
        if text is not None:
            yield where, text


def _separated(file: BinaryIO, path: Path, separator: re.Pattern) -> Iterator[tuple[str, bytes]]:
    lines, start = [], 1
    for number, line in enumerate(file, start=1):
        if separator.fullmatch(line.rstrip(b"\r\n").decode("utf-8", "replace")):
            if lines or separator is _END_OF_DOCUMENT:  # blank lines, for instance, may follow each other
                yield f"{path}:{start}", b"".join(lines)
            lines, start = [], number + 1
        else:
            lines.append(line)
    if lines or start == 1:
        yield f"{path}:{start}", b"".join(lines)


def _json_lines(file: BinaryIO, path: Path, text_key: str, skips: Skips) -> Iterator[tuple[str, str]]:
    for number, raw in enumerate(file, start=1):
        where = f"{path}:{number}"
        line = _decode(raw, where, skips)
        if line is None or not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            skips.add("broken_line", where, f"not JSON: {error}")
            continue
        text = row.get(text_key) if isinstance(row, dict) else None
        if isinstance(text, str):
            yield where, text
        else:
            skips.add("broken_line", where, f"no text under the key {text_key!r} (see --text-key)")


def _parquet_rows(path: Path, text_key: str, skips: Skips) -> Iterator[tuple[str, str]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if text_key not in names:
                raise DataError(f"{path} has no column {text_key!r}; name one of {', '.join(names)} with --text-key.")
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=[text_key]):
                for value in batch.column(0):
                    number += 1
                    yield from _cell(value, f"{path}: row {number}", skips)
    except pyarrow.ArrowException as error:
        skips.add("broken_file", str(path), str(error).splitlines()[0])


def _cell(value, where: str, skips: Skips) -> Iterator[tuple[str, str]]:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:
        skips.add("bad_encoding", where, str(error))
        return
    if isinstance(text, str):
        yield where, text
    else:
        skips.add("broken_line", where, "the cell holds no text")


def _decode(raw: bytes, where: str, skips: Skips) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        skips.add("bad_encoding", where, f"not UTF-8: {error.reason} at byte {error.start}")
        return None
