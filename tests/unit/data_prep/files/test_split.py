"""A document is on one side only, and always on the same one."""

import random

from data_prep.files.skips import Skips
from data_prep.files.split import TEST, TRAIN, VALID, SplitRule, content_digest, split_items
from data_prep.text.sources import COPIES, SKIPPED, Document, Documents


class Texts:
    """A source that is a list."""

    def __init__(self, texts):
        self.texts = texts

    def read(self, skips):
        return (Document(str(number), text) for number, text in enumerate(self.texts))


TEXTS = [f"document {index}\nwith text" for index in range(2000)]


def sides(texts, fraction=0.1, seed=0, valid=None, skips=None):
    rule = SplitRule(seed, fraction, valid=valid)
    found = split_items(Texts(texts), rule, skips or Skips(False, SKIPPED), COPIES)
    return [(split, document.words) for split, document in found]


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


def test_the_remedy_of_an_empty_test_can_help():
    assert SplitRule(0, 0.0, test_fraction=0.9).remedy(TEST) == (
        "name a --test-source, or raise --valid-fraction, of which test is a share"
    )
    assert SplitRule(0, 0.1, test_fraction=0.1).remedy(TEST) == "name a --test-source, or raise --test-fraction"


def test_white_space_does_not_hide_a_copy():
    assert content_digest("a  b\r\n") == content_digest("a b")
    assert content_digest("a b") != content_digest("ab")
    assert len({split for split, _ in sides(["x y\n", "x y", " x\ty\r\n"], fraction=0.5)}) == 1


def test_documents_of_a_valid_source_are_dropped_from_train():
    skips = Skips(True, SKIPPED)
    result = sides(TEXTS, 0.0, valid=Texts([TEXTS[5] + "\n", "other"]), skips=skips)
    assert result[:2] == [(VALID, TEXTS[5] + "\n"), (VALID, "other")]
    train = [text for split, text in result if split == TRAIN]
    assert train == TEXTS[:5] + TEXTS[6:]
    assert skips.counts["in_valid"] == 1


def test_the_default_holds_out_a_sensible_part_of_the_stdlib():
    rule = SplitRule(seed=0, valid_fraction=0.05)
    sizes = {TRAIN: 0, VALID: 0}
    for split, document in split_items(Documents(["python-stdlib"]), rule, Skips(False, SKIPPED), COPIES):
        sizes[split] += len(document.words)
    assert 0.015 < sizes[VALID] / sizes[TRAIN] < 0.15
