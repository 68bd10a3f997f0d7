"""The split of texts into train, valid and test, decided by the words of an item alone.

Equal items therefore get the same split, whatever their order, their file or the number of workers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from data_prep.files.skips import Skips
from data_prep.files.sources import Item, Sources

TRAIN, VALID, TEST = "train", "valid", "test"


@dataclass(frozen=True)
class SplitRule:
    """Valid is the source `valid`, or without one a fraction of the items of train.

    Test is the source `test`, or without one a fraction of the items that are held out of train.
    """

    seed: int
    valid_fraction: float = 0.0
    test_fraction: float = 0.0
    valid: Sources[Any] | None = None
    test: Sources[Any] | None = None

    @property
    def splits(self) -> list[str]:
        has_valid, has_test = self.valid or self.valid_fraction, self.test or self.test_fraction
        return [TRAIN, *([VALID] if has_valid else []), *([TEST] if has_test else [])]

    def remedy(self, split: str) -> str:
        """The remedy if `split` alone has no items."""
        if split == TRAIN:
            return "name more with --source"
        source = self.valid if split == VALID else self.test
        if split == TEST and not source and not self.valid and not self.valid_fraction:
            return "name a --test-source, or raise --valid-fraction, of which test is a share"
        return f"check --{split}-source" if source else f"name a --{split}-source, or raise --{split}-fraction"


def split_items(
    source: Sources[Item],
    rule: SplitRule,
    skips: Skips,
    copies: str = "held_out",
    held_out: dict[str, set[bytes]] | None = None,
) -> Iterator[tuple[str, Item]]:
    """(split, item) of every item: first of the source `test`, then of `valid`, then of `source`.

    A copy of an item that an earlier source held out is counted in `skips` as `copies`. `held_out` takes the digests of
    the items of both held-out sources, and holds those of an earlier run that is continued.
    """
    held_out = {TEST: set(), VALID: set()} if held_out is None else held_out
    earlier: list[set[bytes]] = []
    for split, held_source in ((TEST, rule.test), (VALID, rule.valid)):
        for item, digest in _unheld(held_source, earlier, rule.seed, skips, copies) if held_source else ():
            held_out[split].add(digest)
            yield _valid_or_test(digest, rule) if split == VALID else split, item
        earlier.append(held_out[split])
    for item, digest in _unheld(source, earlier, rule.seed, skips, copies):
        is_held = not rule.valid and _share(digest[:8]) < rule.valid_fraction
        yield _valid_or_test(digest, rule) if is_held else TRAIN, item


def content_digest(words: str, seed: int = 0) -> bytes:
    """16 bytes that name `words` up to white space: a copy with other line ends is still a copy."""
    joined = " ".join(words.split()).encode()
    return hashlib.blake2b(joined, digest_size=16, key=str(seed).encode()).digest()


def _unheld(
    source: Sources[Item], held_out: list[set[bytes]], seed: int, skips: Skips, copies: str
) -> Iterator[tuple[Item, bytes]]:
    """Items that are not held out, with their digests."""
    for item in source.read(skips):
        digest = content_digest(item.words, seed)
        if any(digest in of_one for of_one in held_out):
            skips.add(copies, item.where, "a copy of a part of valid or test")
        else:
            yield item, digest


def _valid_or_test(digest: bytes, rule: SplitRule) -> str:
    return TEST if _share(digest[8:]) < rule.test_fraction else VALID


def _share(eight_bytes: bytes) -> float:
    return int.from_bytes(eight_bytes, "big") / 2**64
