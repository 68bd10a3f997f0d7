"""Leaves out documents that are nearly copies of earlier ones.

Two documents are alike by the Jaccard similarity of their sets of shingles, runs of five words (Lee et al. 2022,
"Deduplicating Training Data Makes Language Models Better", arXiv 2107.06499). It is estimated by MinHash (Broder 1997,
"On the resemblance and containment of documents"), and candidates are found by bands of the sketches.
"""

from collections.abc import Iterator

from rensa import RMinHash, RMinHashDeduplicator

from data_prep.files.skips import Skips
from data_prep.text.sources import Document

NEAR_COPY = "near_copy"
LEAST_SIMILARITY = 0.5  # below it, bands would miss more than an eighth of the near copies
_SHINGLE_WORDS = 5  # of Lee et al.
_SLOTS = 128  # of a sketch: the estimate of a similarity of 0.8 then has a standard deviation of 0.035
# Two documents of similarity s share a band with probability 1 - (1 - s^4)^32: 0.873 at 0.5, 0.9998 at 0.7.
_BANDS = 32
_SEED = 0


def without_near_copies(
    documents: Iterator[tuple[str, Document]], similarity: float, skips: Skips
) -> Iterator[tuple[str, Document]]:
    """(split, document) of those that are not alike to an earlier one of any split; the others are counted in `skips`.

    Keeps a sketch of each document in memory.
    """
    seen = RMinHashDeduplicator(similarity, _SLOTS, use_lsh=True, num_bands=_BANDS, seed=_SEED)
    for number, (split, document) in enumerate(documents):
        sketch = RMinHash(_SLOTS, _SEED)
        sketch.update(shingles(document.words))
        if seen.add(str(number), sketch):
            yield split, document
        else:
            skips.add(NEAR_COPY, document.where, f"similarity of {similarity:g} or more to an earlier document")


def shingles(text: str) -> list[str]:
    """All runs of five words; of a shorter text all of its words as one."""
    words = text.split()
    return [" ".join(words[at : at + _SHINGLE_WORDS]) for at in range(max(1, len(words) - _SHINGLE_WORDS + 1))]
