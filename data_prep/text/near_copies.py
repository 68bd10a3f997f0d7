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
_LENGTH_BYTES = 4  # before each sketch of a record


class NearCopies:
    """Texts that were seen. Keeps a sketch of each in memory, 3.4 kB. `records` those that `new_sketches` returns."""

    def __init__(self, similarity: float, records: bool = False):
        self.similarity, self._records = similarity, records
        self._seen = RMinHashDeduplicator(similarity, _SLOTS, use_lsh=True, num_bands=_BANDS, seed=_SEED)
        self._count, self._new = 0, bytearray()

    def add(self, text: str) -> bool:
        """Whether `text` is not alike to one that was seen; it is then seen too."""
        return self._add(_sketch(text))

    def has(self, text: str) -> bool:
        """Whether `text` is alike to one that was seen."""
        is_near: bool = self._seen.is_duplicate("", _sketch(text))
        return is_near

    def new_sketches(self) -> bytes:
        """Sketches of texts that were added since the last call."""
        new, self._new = bytes(self._new), bytearray()
        return new

    def resume(self, sketches: bytes) -> None:
        """Sees the texts again whose sketches an earlier run recorded."""
        place = 0
        while place < len(sketches):
            start = place + _LENGTH_BYTES
            place = start + int.from_bytes(sketches[place:start], "big")
            sketch = RMinHash(_SLOTS, _SEED)
            sketch.__setstate__(sketches[start:place])
            self._add(sketch)
        self._new.clear()

    def _add(self, sketch: RMinHash) -> bool:
        self._count += 1
        is_new: bool = self._seen.add(str(self._count), sketch)
        if is_new and self._records:
            state: bytes = sketch.__getstate__()  # the bytes that pickle would store
            self._new += len(state).to_bytes(_LENGTH_BYTES, "big") + state
        return is_new


def without_near_copies(
    documents: Iterator[tuple[str, Document]], seen: NearCopies, skips: Skips
) -> Iterator[tuple[str, Document]]:
    """(split, document) of those that are not alike to an earlier one of any split; `skips` counts the others."""
    for split, document in documents:
        if seen.add(document.words):
            yield split, document
        else:
            skips.add(NEAR_COPY, document.where, f"similarity of {seen.similarity:g} or more to an earlier document")


def _sketch(text: str) -> RMinHash:
    sketch = RMinHash(_SLOTS, _SEED)
    sketch.update(shingles(text))
    return sketch


def shingles(text: str) -> list[str]:
    """All runs of five words; of a shorter text all of its words as one."""
    words = text.split()
    return [" ".join(words[at : at + _SHINGLE_WORDS]) for at in range(max(1, len(words) - _SHINGLE_WORDS + 1))]
