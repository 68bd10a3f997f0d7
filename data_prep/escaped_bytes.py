"""Text for a reader that must have UTF-8, of a file that need not be UTF-8: other bytes are escaped, and come back.

A byte 0x80..0xff that is part of no character becomes the character U+10FF00 + byte, of Unicode's last private plane.
"""

import codecs
import re

import pyarrow as pa
from pyarrow import compute

_PRIVATE = 0x10FF00
# Python decodes byte 0x80 + n as the lone surrogate U+DC80 + n: the last of its three bytes is that of U+10FF80 + n.
_SURROGATE_TO_ESCAPE = ((b"\xed\xb2", b"\xf4\x8f\xbe"), (b"\xed\xb3", b"\xf4\x8f\xbf"))
_ESCAPED = re.compile(rb"\xf4\x8f[\xbe\xbf][\x80-\xbf]")


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
            self.escapes, raw = True, text.encode(errors="surrogatepass")
            for surrogate, escape in _SURROGATE_TO_ESCAPE:
                raw = raw.replace(surrogate, escape)
            return raw


def unescaped(words_N: pa.Array) -> pa.Array:
    """The bytes of the file in place of escapes; text (N,), of which words may now be no UTF-8."""
    raw_N = words_N.cast(pa.binary())
    if not compute.any(compute.match_substring(raw_N, b"\xf4\x8f")).as_py():
        return words_N
    words = [word and _ESCAPED.sub(lambda found: _byte(found[0]), word) for word in raw_N.to_pylist()]
    return pa.array(words, type=pa.binary()).view(words_N.type)


def _byte(escape: bytes) -> bytes:
    return bytes([ord(escape.decode()) - _PRIVATE])
