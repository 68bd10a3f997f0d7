"""Click logs made up as they are read, with a signal whose best possible loss is known.

Words of a feature follow Zipf's law with exponent 1. The log-odds of a click are a bias, a linear function of the
numbers, a weight for each word, and for neighbouring features the product of two further weights of their words. The
weights are a hash of (seed, feature, word's row), so that tables of any size need no memory.

Shapes: N rows of a block, F dense features, C categorical features.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.errors import DataError
from comera_dist.ops.permutation import permute
from data_prep.clicks.records import Clicks
from data_prep.files.skips import Skips

DENSE = tuple(f"I{index}" for index in range(1, 14))  # the features of Criteo's logs
CATEGORIES = tuple(f"C{index}" for index in range(1, 27))
_BLOCK = 1 << 15  # chosen: rows in memory at once. Another value would change the generated rows
_BIAS, _SCALE = -1.5, 0.9  # chosen: of log-odds, the bias and the standard deviation of each of the three other terms
_MOST_ROWS = 10**12  # of Criteo's 40 columns these would be 160 TB
_HALF = 1 << 31


@dataclass(frozen=True)
class GeneratedClicks:
    """`rows` rows with as many numbers as Criteo's logs, and a table of `table_rows[c]` rows for each feature c."""

    rows: int
    seed: int
    table_rows: tuple[int, ...]
    dense: tuple[str, ...] = DENSE
    needs_fit = False
    notes = ()
    usage = "generated:ROWS[:SEED]"
    reads_files = names_columns = False

    @classmethod
    def open(cls, spec: str, settings: dict[str, Any], block_bytes: int) -> "GeneratedClicks":
        """`spec` is ROWS[:SEED]. `hash_rows` of `settings` sizes the tables: a number for each, or one for all 26."""
        rows, _, seed = spec.partition(":")
        if not rows.isdecimal() or not int(rows) or not (seed or "0").isdecimal():
            raise DataError(f"source generated:{spec} is not understood; write generated:ROWS or generated:ROWS:SEED")
        if int(rows) > _MOST_ROWS:
            raise DataError(f"generated:{rows} is more than {_MOST_ROWS:,} rows; make fewer")
        sizes = settings["hash_rows"]
        if not sizes:
            raise DataError("a generated source needs the sizes of its tables; name them with --hash-rows")
        return cls(int(rows), int(seed or "0"), sizes * len(CATEGORIES) if len(sizes) == 1 else sizes)

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(f"C{index}" for index in range(1, len(self.table_rows) + 1))

    def fit(self, is_train: Callable[..., Any], skips: Skips, advance: Callable[[int], None]) -> None:
        """Does nothing: there is nothing to learn."""

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        for first in range(0, self.rows, _BLOCK):
            random = np.random.default_rng([self.seed, first])
            count = min(_BLOCK, self.rows - first)
            dense_NF = random.standard_normal((count, len(self.dense)), dtype=np.float32)
            categories_NC = self._draw_words(random.random((count, len(self.table_rows))))
            odds_N = 1 / (1 + np.exp(-self._log_odds(dense_NF, categories_NC)))
            labels_N = random.random(count) < odds_N
            loss_N = -np.log(np.where(labels_N, odds_N, 1 - odds_N))
            number_N = np.arange(first, first + count)
            yield Clicks(number_N, labels_N.astype(np.int8), dense_NF, categories_NC, loss_N)

    def facts(self) -> dict[str, Any]:
        return {
            "dense": [{"name": name, "made": "standard normal"} for name in self.dense],
            "categories": [{"name": name, "made": "Zipf's law"} for name in self.categories],
            "table_rows": list(self.table_rows),
        }

    def words(self) -> dict[str, list[str]]:
        return {}

    def _draw_words(self, uniform_NC: NDArray[np.float64]) -> NDArray[np.int32]:
        """Rows (N, C). The word of frequency rank k, 1 or more, has probability log(1 + 1/k) / log(rows + 1)."""
        categories_NC = np.empty(uniform_NC.shape, dtype=np.int32)
        for feature, rows in enumerate(self.table_rows):
            rank_N = np.exp(uniform_NC[:, feature] * math.log(rows + 1)).astype(np.int64)
            categories_NC[:, feature] = rank_N * _scatter(rows) % rows  # rank rows + 1, a rounding error, is rank 1
        return categories_NC

    def _log_odds(self, dense_NF: NDArray[np.float32], categories_NC: NDArray[np.int32]) -> NDArray[np.float64]:
        weight_F, _ = self._weights(-1, np.arange(len(self.dense)))
        weights_CN = [self._weights(feature, row_N) for feature, row_N in enumerate(categories_NC.T)]
        alone_NC, paired_NC = (np.stack(halves, axis=1) for halves in zip(*weights_CN, strict=True))
        products_NC = paired_NC[:, 1:] * paired_NC[:, :-1]
        linear_N = dense_NF @ weight_F / np.sqrt(len(self.dense))
        log_odds_N: NDArray[np.float64] = _BIAS + _SCALE * (
            _sum_of_unit_variance(alone_NC) + _sum_of_unit_variance(products_NC) + linear_N
        )
        return log_odds_N

    def _weights(self, feature: int, row_N: NDArray[Any]) -> tuple[NDArray[np.float64], ...]:
        """Two weights for each row, uniform with mean 0 and variance 1."""
        hash_N = permute(row_N, _HALF**2, key=(self.seed, "weights", feature))
        return tuple((half_N / _HALF * 2 - 1) * 3**0.5 for half_N in np.divmod(hash_N, _HALF))


def _scatter(rows: int) -> int:
    """A number coprime to `rows`, near the golden ratio of it: multiples spread frequent words over the table."""
    return next(number for number in range(int(rows * 0.618), rows + 1) if math.gcd(number, rows) == 1)


def _sum_of_unit_variance(terms_NC: NDArray[np.float64]) -> NDArray[np.float64]:
    sum_N: NDArray[np.float64] = terms_NC.sum(axis=1) / max(1, terms_NC.shape[1]) ** 0.5
    return sum_N
