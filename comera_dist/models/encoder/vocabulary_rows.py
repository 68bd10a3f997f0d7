"""The rows of a vocabulary in our order, and in that of a tokenizer.json which has the special tokens itself.

Our rows are four special tokens, and then all tokens of the tokenizer. These include the same four a second time; no
text has them, so only the first four rows are read.
"""

from collections.abc import Sequence

from comera_dist.data.fast_tokenizer import FastTokenizer
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.special_tokens import NAMES, SPECIALS


def special_ids(data: PairCorpus) -> list[int] | None:
    """The ids of our special tokens in the tokenizer of `data`; None if it is of sentencepiece.

    Raises DataError if a tokenizer.json lacks one.
    """
    tokenizer = open_tokenizer(data.tokenizer_path, data.eos_id)
    return tokenizer.ids_of(NAMES) if isinstance(tokenizer, FastTokenizer) else None


def rows_for_us(ids: Sequence[int], size: int) -> list[int]:
    """For each of our `size` rows the row of the tokenizer's order, where the special tokens have `ids`."""
    return [*ids, *range(size - SPECIALS)]


def rows_for_them(ids: Sequence[int], size: int) -> list[int]:
    """For each row of the tokenizer's order that one of our `size` rows which is read."""
    special = dict(zip(ids, range(SPECIALS), strict=True))
    return [special.get(index, SPECIALS + index) for index in range(size - SPECIALS)]
