"""Text to token ids and back, exactly: `decode(encode(text)) == text` for every text that UTF-8 can hold."""

import hashlib
import re
from pathlib import Path

import sentencepiece

from comera_dist.errors import DataError

# sentencepiece writes a space as this character, so it would read a literal one as a space. `encode` therefore never
# passes it on, but writes the ids of its three bytes.
SPACE_MARK = "\u2581"
_BREAKS = re.compile(f"([\n{SPACE_MARK}])")
# Indents, a tab, CRLF, two characters beyond ASCII, one beyond 16 bits and a NUL: models trained elsewhere change some.
_PROBE = "\tif x:\n        return '\u2581 é \U0001f600\x00'  \r\n"


class Tokenizer:
    """A trained sentencepiece model that keeps text exactly.

    Raises DataError if the file is missing, is not a sentencepiece model, or does not keep text exactly (models trained
    elsewhere usually change spaces or newlines).
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            model = self.path.read_bytes()
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except OSError as error:
            raise DataError(
                f"tokenizer {path} cannot be read ({error.strerror}); train one with "
                f"`python data_prep/train_tokenizer.py --output {path}`"
            ) from error
        except (RuntimeError, ValueError) as error:  # ValueError: the reason that it gives is not UTF-8
            raise DataError(
                f"tokenizer {path} is not a sentencepiece model; train one with data_prep/train_tokenizer.py "
                "--overwrite"
            ) from error
        self.fingerprint = hashlib.sha256(model).hexdigest()
        space_mark_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]
        self._break_ids = {"\n": [self._processor.piece_to_id("\n")], SPACE_MARK: space_mark_ids}
        self._refuse_if_lossy()

    @property
    def vocab_size(self) -> int:
        size: int = self._processor.get_piece_size()
        return size

    @property
    def eos_id(self) -> int:
        eos_id: int = self._processor.eos_id()
        return eos_id

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without an EOS. No token crosses a newline.

        Encoding line by line gives the same ids as encoding the whole text, one and a half times as fast.
        """
        parts = _BREAKS.split(text)  # line, break, line, break, ..., line
        # One thread: work is divided among processes, not threads.
        encoded: list[list[int]] = self._processor.encode(parts[::2], num_threads=1)
        ids, *lines = encoded
        for break_, line in zip(parts[1::2], lines, strict=True):
            ids += self._break_ids[break_]
            ids += line
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, without EOS. Bytes that are not UTF-8, which a model may write, become U+FFFD."""
        text: str = self._processor.decode(ids)
        return text

    def _refuse_if_lossy(self) -> None:
        special_ids = [token for ids in self._break_ids.values() for token in ids]
        if self._processor.unk_id() in special_ids or self.eos_id < 0 or self.decode(self.encode(_PROBE)) != _PROBE:
            raise DataError(
                f"tokenizer {self.path} does not give back every text exactly or has no end-of-text token; "
                "train one with data_prep/train_tokenizer.py"
            )
