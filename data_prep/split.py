"""Which document is for training and which for validation: decided by its content and by nothing else.

Equal documents therefore land on the same side, whatever their order, their file or the number of workers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.skips import Skips
from data_prep.sources import Sources

TRAIN, VALID = "train", "valid"


@dataclass(frozen=True)
class SplitRule:
    """Either a fraction of the source's documents is held out, or `valid_source` is the validation split."""

    valid_fraction: float | None
    seed: int
    valid_source: Sources | None = None


def split_documents(source: Sources, rule: SplitRule, skips: Skips) -> Iterator[tuple[str, str]]:
    """(split, text) of every document. With a valid source its documents come first and stay out of train."""
    if rule.valid_source is None:
        for text in source.documents(skips):
            yield VALID if _fraction(text, rule.seed) < rule.valid_fraction else TRAIN, text
        return
    held_out = set()
    for text in rule.valid_source.documents(skips):
        held_out.add(content_digest(text))
        yield VALID, text
    for text in source.documents(skips):
        if content_digest(text) in held_out:
            skips.add("in_valid", repr(text[:40]), "a document of valid")
        else:
            yield TRAIN, text


def content_digest(text: str, seed: int = 0) -> bytes:
    """16 bytes that name the words of `text`: a copy with other white space or line ends is still a copy."""
    words = " ".join(text.split()).encode()
    return hashlib.blake2b(words, digest_size=16, key=str(seed).encode()).digest()


def _fraction(text: str, seed: int) -> float:
    return int.from_bytes(content_digest(text, seed)[:8], "big") / 2**64
