"""A document is on one side only, and always on the same one."""

import random

from data_prep.skips import Skips
from data_prep.sources import parse_source
from data_prep.split import TRAIN, VALID, SplitRule, content_digest, split_documents


class Texts:
    """A source that is a list."""

    def __init__(self, texts):
        self.texts = texts

    def documents(self, skips):
        return iter(self.texts)


TEXTS = [f"document {index}\nwith text" for index in range(2000)]


def sides(texts, fraction=0.1, seed=0, valid=None, skips=None):
    return list(split_documents(Texts(texts), SplitRule(fraction, seed, valid), skips or Skips()))


def test_the_side_depends_on_content_alone():
    first = {text: split for split, text in sides(TEXTS)}
    shuffled = random.Random(1).sample(TEXTS, len(TEXTS)) * 2
    for split, text in sides(shuffled):
        assert first[text] == split


def test_the_fraction_is_met_and_the_seed_chooses_others():
    held_out = {text for split, text in sides(TEXTS) if split == VALID}
    others = {text for split, text in sides(TEXTS, seed=1) if split == VALID}
    assert 150 < len(held_out) < 250
    assert held_out != others
    assert not [1 for split, _ in sides(TEXTS, fraction=0.0) if split == VALID]


def test_white_space_does_not_hide_a_copy():
    assert content_digest("a  b\r\n") == content_digest("a b")
    assert content_digest("a b") != content_digest("ab")
    assert len({split for split, _ in sides(["x y\n", "x y", " x\ty\r\n"], fraction=0.5)}) == 1


def test_documents_of_a_valid_source_are_dropped_from_train():
    skips = Skips(strict=True)
    result = sides(TEXTS, None, valid=Texts([TEXTS[5] + "\n", "other"]), skips=skips)
    assert result[:2] == [(VALID, TEXTS[5] + "\n"), (VALID, "other")]
    train = [text for split, text in result if split == TRAIN]
    assert train == TEXTS[:5] + TEXTS[6:]
    assert skips.counts["in_valid"] == 1


def test_the_default_holds_out_a_sensible_part_of_the_stdlib():
    rule = SplitRule(0.05, 0)
    sizes = {TRAIN: 0, VALID: 0}
    for split, text in split_documents(parse_source("python-stdlib"), rule, Skips()):
        sizes[split] += len(text)
    assert 0.015 < sizes[VALID] / sizes[TRAIN] < 0.15
