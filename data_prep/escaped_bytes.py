"""Text for a reader that must have UTF-8, of a file that need not be UTF-8: other bytes are escaped, and come back.

A byte 0x80..0xff that is part of no character becomes the character U+10FF00 + byte, of Unicode's last private plane.
"""

import codecs
import re

import pyarrow as pa
from pyarrow import compute

_PRIVATE, _LONE = 0x10FF00, 0xDC00  # Python's surrogateescape makes byte b the lone surrogate 0xdc00 + b
_ESCAPE = {_LONE + byte: _PRIVATE + byte for byte in range(0x80, 0x100)}
_FIRST_BYTES = chr(_PRIVATE + 0x80).encode()[:2]
_ESCAPED = re.compile(_FIRST_BYTES + rb"[\xbe\xbf][\x80-\xbf]")


class EscapedFile:
    """What a binary `file` holds, as UTF-8. `escapes` says whether it had other bytes so far."""

    closed = False  # pyarrow asks

    def __init__(self, file):
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._ready, self._at_end, self.escapes = b"", False, False

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer at the end of the file only: a short block would be too short for a row."""
        while len(self._ready) < size and not self._at_end:
            raw = self._file.read(size)
            self._ready, self._at_end = self._ready + self._as_utf8(raw), not raw
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece

    def _as_utf8(self, raw: bytes) -> bytes:
        text = self._decoder.decode(raw, final=not raw)
        try:
            return text.encode()
        except UnicodeEncodeError:
            self.escapes = True
            return text.translate(_ESCAPE).encode()


def unescaped(words_N: pa.Array) -> pa.Array:
    """The bytes of the file in place of escapes; text (N,), of which words may now be no UTF-8."""
    raw_N = words_N.cast(pa.binary())
    if not compute.any(compute.match_substring(raw_N, _FIRST_BYTES)).as_py():
        return words_N
    words = [word and _ESCAPED.sub(lambda found: _byte(found[0]), word) for word in raw_N.to_pylist()]
    return pa.array(words, type=pa.binary()).view(words_N.type)


def _byte(escape: bytes) -> bytes:
    return bytes([ord(escape.decode()) - _PRIVATE])
