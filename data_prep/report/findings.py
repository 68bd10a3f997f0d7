"""What a sample of a split of text holds, in one pass.

Shapes: V ids of the tokenizer, N samples.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from data_prep.files.split import content_digest
from data_prep.report.languages import Languages
from data_prep.report.texts import Sample, TextSplit
from data_prep.text.near_copies import NearCopies


class Findings:
    """The figures of the samples that `read` was called with."""

    def __init__(self, split: TextSplit, vocab_size: int, similarity: float):
        self.split, self.lengths = split, list[int]()  # tokens of each sample, (N)
        self.count_V = np.zeros(vocab_size, dtype=np.int64)
        self.labels, self.writing = Counter[str](), Languages()
        self.exact_copies = self.near_copies = self.near_train = 0
        self.near = NearCopies(similarity)
        self._digests = set[bytes]()

    def read(self, samples: Iterable[Sample], decode: Callable[[list[int]], str], train: NearCopies | None) -> None:
        """Samples that are near copies of those in `train` are counted in `near_train`."""
        for sample in samples:
            self._count(sample)
            text = "\n".join(decode(ids.tolist()) for ids in sample.texts)
            self.writing.add(text)
            self._compare(text, train)

    @property
    def samples(self) -> int:
        return len(self.lengths)

    def _count(self, sample: Sample) -> None:
        for ids in sample.texts:
            np.add.at(self.count_V, ids, 1)
        self.lengths.append(sum(map(len, sample.texts)))
        if sample.label is not None:
            self.labels[sample.label] += 1

    def _compare(self, text: str, train: NearCopies | None) -> None:
        digest = content_digest(text)
        self.exact_copies += digest in self._digests
        self._digests.add(digest)
        self.near_copies += not self.near.add(text)
        self.near_train += train is not None and train.has(text)
