"""How the numbers and words of a click log become what a model reads: numbers near 1, and rows of tables.

Row 0 of every table is for words that are missing, unseen in train or rare.

Legend: N rows of a block, F dense features, U distinct words.
"""

import hashlib
from collections import Counter

import numpy as np
import pyarrow as pa

from data_prep.text_table import as_mask


class Logarithms:
    """log(x + 1), where negative and missing numbers are 0, as the authors of DLRM treat Criteo's counts.

    Source: github.com/facebookresearch/dlrm, data_utils.py.
    """

    def __init__(self, features: int):
        self._features = features

    def encode(self, dense_NF: np.ndarray) -> np.ndarray:
        """float64 (N, F), NaN where missing, to float32."""
        return np.log1p(np.maximum(np.nan_to_num(dense_NF), 0)).astype(np.float32)

    def facts(self) -> list[dict]:
        return [{"made": "log(x + 1)"}] * self._features


class Standardised:
    """(x − mean) / standard deviation; a missing number is 0, which is the mean."""

    def __init__(self, mean_F: np.ndarray, deviation_F: np.ndarray):
        self._mean, self._deviation = mean_F, deviation_F

    def encode(self, dense_NF: np.ndarray) -> np.ndarray:
        """float64 (N, F), NaN where missing, to float32."""
        return np.nan_to_num((dense_NF - self._mean) / self._deviation).astype(np.float32)

    def facts(self) -> list[dict]:
        moments = zip(self._mean.tolist(), self._deviation.tolist(), strict=True)
        return [{"made": "standardised", "mean": mean, "deviation": deviation} for mean, deviation in moments]


class Moments:
    """Mean and standard deviation of the numbers of train."""

    def __init__(self, features: int):
        self._count, self._mean, self._squares = np.zeros(features), np.zeros(features), np.zeros(features)

    def fit(self, dense_NF: np.ndarray) -> None:
        """Takes in rows of train. Moments of parts are joined as Chan, Golub and LeVeque (1979) do, which is exact."""
        if not len(dense_NF):
            return
        present_NF = ~np.isnan(dense_NF)
        count_F = present_NF.sum(axis=0)
        mean_F = np.where(present_NF, dense_NF, 0).sum(axis=0) / np.maximum(count_F, 1)
        squares_F = (np.where(present_NF, dense_NF - mean_F, 0) ** 2).sum(axis=0)
        total_F, apart_F = np.maximum(self._count + count_F, 1), mean_F - self._mean
        self._squares += squares_F + apart_F**2 * self._count * count_F / total_F
        self._mean += apart_F * count_F / total_F
        self._count += count_F

    def learned(self) -> Standardised:
        deviation_F = np.sqrt(self._squares / np.maximum(self._count, 1))
        return Standardised(self._mean, np.where(deviation_F > 0, deviation_F, 1))


class HashedRows:
    """Words hashed into rows 1..rows-1: numbers of 32 bits, hashes already, by remainder, bytes by BLAKE2b."""

    def __init__(self, rows: int):
        self.rows = rows

    def encode(self, words_N: pa.Array) -> np.ndarray:
        """int32 (N,)."""
        if pa.types.is_integer(words_N.type):
            hash_N = words_N.fill_null(0).to_numpy().astype(np.int64)
            return np.where(as_mask(words_N.is_null()), 0, 1 + hash_N % (self.rows - 1)).astype(np.int32)
        return _by_distinct_word(words_N, lambda word: 1 + _hash(word) % (self.rows - 1))

    def facts(self) -> dict:
        return {"made": "hashed"}


class Dictionary:
    """A row for each of `words`, from 1 on."""

    def __init__(self, words: list):
        self.words = words
        self._row_of = {word: row for row, word in enumerate(words, start=1)}

    @property
    def rows(self) -> int:
        return 1 + len(self.words)

    def encode(self, words_N: pa.Array) -> np.ndarray:
        """int32 (N,)."""
        return _by_distinct_word(words_N, lambda word: self._row_of.get(word, 0))

    def facts(self) -> dict:
        return {"made": "dictionary"}


class WordCounts:
    """The words that train holds at least `min_count` times, the most frequent first."""

    def __init__(self, min_count: int):
        self._min_count, self._counts = min_count, Counter()

    def fit(self, words_N: pa.Array) -> None:
        """Counts words of rows of train. All distinct ones stay in memory."""
        for pair in words_N.drop_null().value_counts().to_pylist():
            self._counts[pair["values"]] += pair["counts"]

    def learned(self) -> Dictionary:
        kept = ((word, count) for word, count in self._counts.items() if count >= self._min_count)
        return Dictionary([word for word, _ in sorted(kept, key=lambda pair: (-pair[1], pair[0]))])


def _by_distinct_word(words_N: pa.Array, row_of) -> np.ndarray:
    encoded = words_N.dictionary_encode()
    row_U = np.array([row_of(word) for word in encoded.dictionary.to_pylist()] + [0], dtype=np.int32)
    return row_U[encoded.indices.fill_null(-1).to_numpy()]


def _hash(word: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "big")
