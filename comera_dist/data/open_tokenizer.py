"""Opens the tokenizer in a file, of whichever kind it is."""

from pathlib import Path

from comera_dist.data.fast_tokenizer import FastTokenizer
from comera_dist.data.sentencepiece_tokenizer import SentencepieceTokenizer
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError

FAST, SENTENCEPIECE = FastTokenizer.file_name, SentencepieceTokenizer.file_name


def open_tokenizer(path: str | Path, eos_id: int | None = None) -> Tokenizer:
    """A `tokenizer.json` if the file holds a JSON object, otherwise a sentencepiece model.

    `eos_id`: the id that ends a document, where prepared data tell it. Raises DataError if the file is missing or
    neither of them.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"tokenizer {path} cannot be read ({error.strerror}); train one with "
            f"`python data_prep/train_tokenizer.py --output {path}`"
        ) from error
    if content.startswith(b"{"):
        return FastTokenizer(path, content, eos_id)
    return SentencepieceTokenizer(path, content)


def tokenizer_file(entry: object) -> str:
    """The tokenizer's name in a manifest's entry; another one might lead out of the folder."""
    name = entry.get("file") if isinstance(entry, dict) else None
    return FAST if name == FAST else SENTENCEPIECE
