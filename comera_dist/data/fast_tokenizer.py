"""Tokenizers in the format `tokenizer.json` of Hugging Face's library tokenizers."""

from collections.abc import Iterable
from pathlib import Path

import tokenizers

from comera_dist.data.manifest import read_json
from comera_dist.data.tokenizer import INCOMPLETE, Tokenizer
from comera_dist.errors import DataError

CONFIG = "tokenizer_config.json"  # beside it, names the token that ends a text
# Where that file is missing: its names in the published models LLaMA 2 and T5, GPT-2, LLaMA 3, Gemma and BERT.
EOS_TOKENS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")


class FastTokenizer(Tokenizer):
    """A `tokenizer.json`. `eos_id` is the id that ends a document, by default that of the token named in CONFIG.

    Raises DataError if `content` is no such file, or if no end-of-text token is known.
    """

    file_name = "tokenizer.json"

    def __init__(self, path: Path, content: bytes, eos_id: int | None = None):
        super().__init__(path, content)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises nothing more special
            raise DataError(
                f"tokenizer {path} cannot be read as a tokenizer.json ({error}); save it anew with Hugging Face's "
                "library tokenizers"
            ) from error
        read_whole(self._tokenizer)
        self._tokenizer.encode_special_tokens = True  # without it, special tokens are read in any text
        self._size = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self._eos_id = self._named_eos_id() if eos_id is None else eos_id
        self._eos_name = self._tokenizer.id_to_token(self._eos_id) or ""

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def eos_id(self) -> int:
        return self._eos_id

    def encode(self, text: str) -> list[int]:
        ids = self._read(text)
        if self._eos_id not in ids:
            return ids
        # Some files read the name of the end token in any text: as a piece of a Unigram model, or as an added token
        # that is not special. A name that is cut after its first character is text.
        head, tail = self._eos_name[:1], self._eos_name[1:]
        parts = text.split(self._eos_name)
        parts[1:] = [tail + part for part in parts[1:]]
        parts[:-1] = [part + head for part in parts[:-1]]
        return [token for part in parts for token in self._read(part) if token != self._eos_id]

    def _read(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises nothing more special
            raise DataError(
                f"tokenizer {self.path} cannot read a text ({error}); give it a token for unknown text that is in its "
                "vocabulary, or take another one"
            ) from error
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def ids_of(self, names: Iterable[str]) -> list[int]:
        """The ids of tokens by name. Raises DataError if there is no such token."""
        return [self._id_of(name) for name in names]

    def _id_of(self, name: str) -> int:
        found: int | None = self._tokenizer.token_to_id(name)
        if found is None:
            raise DataError(
                f"tokenizer {self.path} has no token {name}, which an encoder of transformers needs; take one that has "
                "it, or export with --to tensors"
            )
        return found

    def surfaces(self) -> list[str | None]:
        before = self.encode("a")  # decoders treat the first token of a text in another way
        length = len(self.decode(before))
        special = {token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special}
        return [
            None if token in special else self.decode([*before, token])[length:] or INCOMPLETE
            for token in range(self.vocab_size)
        ]

    def _named_eos_id(self) -> int:
        named = _token_in(self.path.parent / CONFIG)
        for token in EOS_TOKENS if named is None else (named,):
            found: int | None = self._tokenizer.token_to_id(token)
            if found is not None:
                return found
        raise DataError(
            f"tokenizer {self.path} has no token that is known to end a text; put a {CONFIG} beside it that names its "
            "eos_token"
        )


def read_whole(tokenizer: tokenizers.Tokenizer) -> None:
    """Withdraws what a file may ask for in training: whole batches of one length, and random merges (BPE-dropout).

    With dropout a text would have other ids each time, so those of a prompt would not be those of the prepared data.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None


def _token_in(config: Path) -> str | None:
    """The `eos_token` of a CONFIG, a string or an object with the key `content`; None if it names none."""
    try:
        read = read_json(config)
    except (OSError, ValueError):
        return None
    token = read.get("eos_token") if isinstance(read, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None
