"""Tokenizers that are sentencepiece models."""

import re
from pathlib import Path

import sentencepiece

from comera_dist.data.tokenizer import COMPOSED_PROBE, INCOMPLETE, SPACE_MARK, Tokenizer
from comera_dist.errors import DataError

# `encode` never passes a literal SPACE_MARK on, which sentencepiece would read as a space, but writes the ids of its
# three bytes.
_BREAKS = re.compile(f"([\n{SPACE_MARK}])")


class SentencepieceTokenizer(Tokenizer):
    """A sentencepiece model.

    One of data_prep/train_tokenizer.py has a piece for a newline and keeps every text that UTF-8 can hold exactly.
    Others usually change spaces or newlines. Raises DataError if `content` is not a sentencepiece model, has no EOS, or
    has the piece, does not normalize COMPOSED_PROBE, and yet changes it.
    """

    file_name = "tokenizer.model"

    def __init__(self, path: Path, content: bytes):
        super().__init__(path, content)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
            pieces = [self._processor.id_to_piece(token) for token in range(self.vocab_size)]
        except (RuntimeError, ValueError) as error:  # ValueError: the reason that it gives, or a piece, is not UTF-8
            raise DataError(
                f"tokenizer {path} is not a sentencepiece model; train one with data_prep/train_tokenizer.py "
                "--overwrite"
            ) from error
        newline = self._processor.piece_to_id("\n")
        space_mark_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]
        self._break_ids = {"\n": [newline], SPACE_MARK: space_mark_ids}
        # A rule that normalizes a whole text, e.g. the spaces at its start, would do so to each line.
        self._reads_lines = [piece for piece in pieces if "\n" in piece] == ["\n"] and not self._normalizes_probe()
        if self.eos_id < 0:
            raise DataError(
                f"tokenizer {path} has no end-of-text token (</s>); train one with data_prep/train_tokenizer.py"
            )
        # A sound model with such a piece may still rewrite other characters, as NFKC does.
        if self._reads_lines and self.decode(self.encode(COMPOSED_PROBE)) != COMPOSED_PROBE:
            raise DataError(
                f"tokenizer {path} has a piece for a newline and yet changes texts that it does not normalize: it has "
                "no fallback to bytes, or is damaged; train one with data_prep/train_tokenizer.py --overwrite"
            )

    @property
    def vocab_size(self) -> int:
        size: int = self._processor.get_piece_size()
        return size

    @property
    def eos_id(self) -> int:
        eos_id: int = self._processor.eos_id()
        return eos_id

    @property
    def unk_id(self) -> int:
        """The id that no text has where rare characters become bytes."""
        unk_id: int = self._processor.unk_id()
        return unk_id

    @property
    def splits_at_lines(self) -> bool:
        return self._reads_lines

    def encode(self, text: str) -> list[int]:
        """With a piece for a newline and no other that holds one, no token crosses a newline.

        Encoding line by line gives the same ids as encoding the whole text, one and a half times as fast.
        """
        if not self._reads_lines:
            all_ids: list[int] = self._processor.encode(text)
            return all_ids
        parts = _BREAKS.split(text)  # line, break, line, break, ..., line
        # One thread: work is divided among processes, not threads.
        encoded: list[list[int]] = self._processor.encode(parts[::2], num_threads=1)
        ids, *lines = encoded
        for break_, line in zip(parts[1::2], lines, strict=True):
            ids += self._break_ids[break_]
            ids += line
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text

    def surfaces(self) -> list[str | None]:
        return [self._surface(token) for token in range(self.vocab_size)]

    def _normalizes_probe(self) -> bool:
        """Whether the model's own rule, such as nmt_nfkc or a space before each text, changes a line of the probe."""
        lines = COMPOSED_PROBE.split("\n")
        return any(self._processor.normalize(line) != line.replace(" ", SPACE_MARK) for line in lines)

    def _surface(self, token: int) -> str | None:
        model = self._processor
        if model.is_control(token) or model.is_unknown(token):
            return None
        return INCOMPLETE if model.is_byte(token) else model.id_to_piece(token).replace(SPACE_MARK, " ")
