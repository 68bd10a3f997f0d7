"""The order in which a run reads its rows: a pure function of the seed and of a row's number in the run, its draw.

A row is a window of text, a pair of texts or a row of a click log. The k-th row that a run reads of a data set is row
permute(k % rows) of epoch k // rows. So each data set of a mixture has epochs and permutations of its own.

Shapes: B draws, P data sets, Q places of a period.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.turns import turns
from comera_dist.ops.permutation import permute


class Order:
    """The rows of data sets of `sizes` rows, which are numbered one after another, by draw.

    `shares` are those of the data sets in the rows of the run, which are met to less than a row at any moment.
    """

    def __init__(self, sizes: Sequence[int], shares: Sequence[Fraction], seed: int):
        self._size_P, self._seed = np.array(sizes), seed
        self._first_P = np.cumsum([0, *sizes[:-1]])
        self._turn_Q, self._before_Q = turns(shares)
        self._quota_P = np.bincount(self._turn_Q)

    def rows(self, draw_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows that the draws read, (B,)."""
        period_B, place_B = np.divmod(draw_B, len(self._turn_Q))
        part_B = self._turn_Q[place_B]
        epoch_B, position_B = np.divmod(
            period_B * self._quota_P[part_B] + self._before_Q[place_B], self._size_P[part_B]
        )
        row_B = np.empty_like(draw_B)
        for part, epoch in np.unique(np.stack([part_B, epoch_B]), axis=1).T.tolist():
            here_B = (part_B == part) & (epoch_B == epoch)  # several epochs where one ends within the batch
            row_B[here_B] = self._first_P[part] + permute(
                position_B[here_B], int(self._size_P[part]), key=self._key(part, epoch)
            )
        return row_B

    def epochs(self, draws: int) -> int:
        """Epochs that every data set has finished after `draws` draws."""
        periods, places = divmod(draws, len(self._turn_Q))
        read_P = periods * self._quota_P + np.bincount(self._turn_Q[:places], minlength=len(self._size_P))
        return int((read_P // self._size_P).min())

    def _key(self, part: int, epoch: int) -> tuple[int, ...]:
        """The first data set is read in the order in which it would be read alone."""
        return (self._seed, epoch, part) if part else (self._seed, epoch)
