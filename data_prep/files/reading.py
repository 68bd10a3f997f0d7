"""Opens source files, compressed or not."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comera_dist.errors import first_line
from data_prep.files.skips import Skips

COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")
BROKEN_FILE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def suffix_of(path: Path) -> str:
    """The suffix that decides how `path` is read, in lower case and without the suffix of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def open_decompressed(path: Path) -> io.BufferedReader:
    suffix = path.suffix.lower()
    if suffix == ".zst":
        import pyarrow  # here and elsewhere in functions, because importing it takes long

        # pyarrow's reader notices a file that was cut short, the reader of `zstandard` does not.
        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    file: io.BufferedReader = openers.get(suffix, open)(path, "rb")
    return file


@contextmanager
def counting_breaks(path: Path, skips: Skips) -> Iterator[None]:
    """Counts a file that breaks off, or cannot be read at all, as one `broken_file`."""
    try:
        yield
    except BROKEN_FILE as error:
        skips.add("broken_file", str(path), first_line(error))


def is_utf8(text: str) -> bool:
    """False if `text` holds a lone surrogate, which stands for a byte that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
