"""Some rows of a split in place of all.

Legend: B rows of a batch, R rows of the subset.
"""

from typing import NamedTuple

import numpy as np

from comera_dist.data.batches import FILLER, Examples


class Subset:
    """The rows `row_R` of `examples`, numbered from 0."""

    def __init__(self, examples: Examples, row_R: np.ndarray):
        self._examples, self._rows = examples, row_R

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> NamedTuple:
        return self._examples.batch(np.where(row_B == FILLER, FILLER, self._rows[row_B]), draw_B)
