"""Documents of one file of text, of any suffix and also compressed.

In a .txt file a line that holds only `<|endoftext|>` ends a document, so that one file can carry a whole library. With
a separator of the user, a line that it matches does so in every text file. The line itself belongs to no document. Text
is decoded as UTF-8 and kept to the byte: line ends are not translated.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from data_prep.files.reading import counting_breaks, open_decompressed, suffix_of
from data_prep.files.skips import Skips

# Not in SKIPPED, so it is counted only if it occurs: manifests without it stay those of earlier versions.
BINARY = "binary"
_DECLARED_TEXT = (".txt", ".md", ".py")  # always text; files of other suffixes are searched for a NUL
_END_OF_DOCUMENT = re.compile(re.escape("<|endoftext|>"))
_LOOKED_AT = 8000  # bytes that git searches for a NUL to tell binary files


def read_documents(path: Path, skips: Skips, separator: re.Pattern[str] | None) -> Iterator[tuple[str, str]]:
    """(where, text) of each document of `path`. A line that `separator` matches as a whole ends a document."""
    suffix = suffix_of(path)
    with counting_breaks(path, skips):
        if suffix not in _DECLARED_TEXT and _is_binary(path):
            skips.add(BINARY, str(path), "a binary file")
            return
        separator = separator or (_END_OF_DOCUMENT if suffix == ".txt" else None)
        with open_decompressed(path) as file:
            for where, raw in _separated(file, path, separator) if separator else [(str(path), file.read())]:
                try:
                    yield where, raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    skips.add("bad_encoding", where, f"not UTF-8: {error.reason} at byte {error.start}")


def _is_binary(path: Path) -> bool:
    with open_decompressed(path) as file:
        return b"\0" in file.read(_LOOKED_AT)


def _separated(file: BinaryIO, path: Path, separator: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    lines: list[bytes] = []
    start = 1
    for number, line in enumerate(file, start=1):
        if separator.fullmatch(line.rstrip(b"\r\n").decode("utf-8", "replace")):
            # Separators of the user may follow each other, blank lines for instance: no document is between them.
            if lines or separator is _END_OF_DOCUMENT:
                yield f"{path}:{start}", b"".join(lines)
            lines, start = [], number + 1
        else:
            lines.append(line)
    if lines or start == 1:
        yield f"{path}:{start}", b"".join(lines)
