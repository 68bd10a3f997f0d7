"""Which pair is for training, validation and test: decided by its group, or where it has none by its two texts.

Pairs of one group, e.g. of one premise, are therefore all on one side.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.pair_sources import Pair, PairSource
from data_prep.skips import Skips
from data_prep.split import TRAIN, VALID, content_digest

TEST = "test"


@dataclass(frozen=True)
class PairSplitRule:
    """Valid is `valid_sources`, or a fraction of the pairs of train where there are none.

    Test is `test_sources`, or a fraction of the pairs that are held out of train.
    """

    valid_fraction: float
    test_fraction: float
    seed: int
    valid_sources: tuple[PairSource, ...] = ()
    test_sources: tuple[PairSource, ...] = ()

    @property
    def splits(self) -> list[str]:
        has_valid, has_test = self.valid_sources or self.valid_fraction, self.test_sources or self.test_fraction
        return [TRAIN, *([VALID] if has_valid else []), *([TEST] if has_test else [])]

    def remedy(self, split: str) -> str:
        """What the user can do where other splits have pairs and this one has none."""
        if split == TRAIN:
            return "name more with --source"
        held = self.valid_sources if split == VALID else self.test_sources
        return f"check --{split}-source" if held else f"name a --{split}-source, or raise --{split}-fraction"


def split_pairs(sources: tuple[PairSource, ...], rule: PairSplitRule, skips: Skips) -> Iterator[tuple[str, Pair]]:
    """(split, pair) of every pair, those of test and valid sources first. What a source before held stays out.

    With groups it is the whole group of a pair that stays out.
    """
    held_out = set()
    for split, held_sources in ((TEST, rule.test_sources), (VALID, rule.valid_sources)):
        digests = set()
        for pair, digest in _unheld(held_sources, held_out, rule.seed, skips):
            digests.add(digest)
            yield _valid_or_test(digest, rule) if split == VALID else split, pair
        held_out |= digests
    for pair, digest in _unheld(sources, held_out, rule.seed, skips):
        chosen = not rule.valid_sources and _share(digest[:8]) < rule.valid_fraction
        yield _valid_or_test(digest, rule) if chosen else TRAIN, pair


def side_digest(pair: Pair, seed: int) -> bytes:
    """16 bytes that name the words of the group, or else of both texts, whatever the white space and the label."""
    return content_digest(f"{pair.first} \0 {pair.second}" if pair.group is None else pair.group, seed)


def _unheld(
    sources: tuple[PairSource, ...], held_out: set[bytes], seed: int, skips: Skips
) -> Iterator[tuple[Pair, bytes]]:
    for source in sources:
        for pair in source.pairs(skips):
            digest = side_digest(pair, seed)
            if digest in held_out:
                skips.add("held_out", pair.where, "a pair or group of valid or test")
            else:
                yield pair, digest


def _valid_or_test(digest: bytes, rule: PairSplitRule) -> str:
    return TEST if _share(digest[8:]) < rule.test_fraction else VALID


def _share(eight_bytes: bytes) -> float:
    return int.from_bytes(eight_bytes, "big") / 2**64
