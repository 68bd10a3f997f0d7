"""What a tokenizer is: text to token ids and back.

Shapes: V token ids.
"""

import hashlib
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar

# sentencepiece writes a space as this character.
SPACE_MARK = "\u2581"
INCOMPLETE = "\ufffd"  # Unicode's replacement character, to which tokenizers decode bytes that are not a character
# Indents, a tab, CRLF, two characters beyond ASCII, one beyond 16 bits and a NUL: many tokenizers change some.
COMPOSED_PROBE = f"\tif x:\n        return '{SPACE_MARK} é \U0001f600\x00'  \r\n"
# Also an accent that NFC joins to its letter, and a ligature and a raised digit, which NFKC replaces.
PROBE = COMPOSED_PROBE + "e\u0301\ufb01\u00b2"


class Tokenizer(ABC):
    """A trained tokenizer, read from the file `path` with the bytes `content`."""

    file_name: ClassVar[str]  # of its copy in prepared data

    def __init__(self, path: Path, content: bytes):
        self.path, self.fingerprint = path, hashlib.sha256(content).hexdigest()

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """V; every id is below it."""

    @property
    @abstractmethod
    def eos_id(self) -> int:
        """The id that ends a document."""

    @property
    def unk_id(self) -> int | None:
        """An id that no text has, if there is one."""
        return None

    @property
    def splits_at_lines(self) -> bool:
        """Whether no token crosses the end of a line, so that a text can be encoded in pieces of whole lines."""
        return False

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without an EOS. Text that looks like a special token is read as text."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, without EOS. Bytes that are not UTF-8, which a model may write, become INCOMPLETE."""

    @abstractmethod
    def surfaces(self) -> list[str | None]:
        """The text of each id (V) as it stands inside of a text; None of a special token."""

    @cached_property
    def keeps_text(self) -> bool:
        """Whether `decode(encode(text))` is a text with unusual characters."""
        return self.decode(self.encode(PROBE)) == PROBE
