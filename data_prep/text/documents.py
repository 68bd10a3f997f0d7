"""Documents of one file of text, of any ending and also compressed.

In a .txt file a line that holds only `<|endoftext|>` ends a document, so that one file can carry a whole library; a
separator of the user's does so in every text file. The line itself belongs to no document. Text is decoded as UTF-8 and
kept to the byte: line ends are not translated.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from data_prep.files.reading import counting_breaks, open_decompressed, suffix_of
from data_prep.files.skips import Skips

# Counted only where there is one: so the manifest of a corpus without binary files is that of earlier versions.
BINARY = "binary"
_DECLARED_TEXT = (".txt", ".md", ".py")  # text whatever they hold; files of other endings are looked into
_END_OF_DOCUMENT = re.compile(re.escape("<|endoftext|>"))
_LOOKED_AT = 8000  # bytes in which git looks for a NUL to tell binary files


def read_documents(path: Path, skips: Skips, separator: re.Pattern | None) -> Iterator[tuple[str, str]]:
    """(where, text) of each document of `path`; a line that `separator` matches as a whole ends one."""
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
