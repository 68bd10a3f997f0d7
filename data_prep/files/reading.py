"""Opens source files, compressed or not."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from comera_dist.errors import first_line
from data_prep.files.skips import Skips

COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")
BROKEN_FILE = (OSError, EOFError, zlib.error, lzma.LZMAError)

# By suffix: what unpacks one member, and the padding that may follow it.
_MEMBERS: dict[str, tuple[Callable[[], Any], bytes]] = {
    ".bz2": (bz2.BZ2Decompressor, b""),
    ".xz": (lzma.LZMADecompressor, b"\0"),
}


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
    if suffix in _MEMBERS:
        return io.BufferedReader(_Members(open(path, "rb"), *_MEMBERS[suffix]))
    opener: Any = gzip.open if suffix == ".gz" else open
    file: io.BufferedReader = opener(path, "rb")
    return file


class _Members(io.RawIOBase):
    """What the members of a compressed file hold, one after another.

    bz2.open and lzma.open take padding, and a damaged header of any member but the first, for the end of the file.
    """

    def __init__(self, file: BinaryIO, new_member: Callable[[], Any], padding: bytes):
        self._file, self._new_member, self._padding = file, new_member, padding
        self._member = new_member()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Raises EOFError if the last member was cut short, OSError or LZMAError if one is damaged."""
        content = b""
        while not content:
            packed = b""
            if self._member.eof:
                packed = self._start_of_next()
                if not packed:
                    return 0
                self._member = self._new_member()
            elif self._member.needs_input:
                packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
                if not packed:
                    raise EOFError("the compressed file was cut short")
            content = self._member.decompress(packed, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _start_of_next(self) -> bytes:
        """The first bytes of the next member, none at the end of the file."""
        packed: bytes = self._member.unused_data.lstrip(self._padding)
        while not packed and (chunk := self._file.read(io.DEFAULT_BUFFER_SIZE)):
            packed = chunk.lstrip(self._padding)
        return packed


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
