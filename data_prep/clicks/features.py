"""Encodes the numbers and words of a click log: numbers near 1, and rows of tables.

Row 0 of every table is for words that are missing, unseen in train or rare.

Shapes: N rows of a block, F dense features, C categorical features, U distinct words.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from comera_dist.errors import DataError
from data_prep.files.blocks import as_mask

Encoding = TypeVar("Encoding", bound="_Ready")


class _Ready:
    """An encoding that has nothing to learn."""

    needs_fit = False

    def fit(self, values: Any) -> None:
        """Learns nothing."""

    def learned(self: Encoding) -> Encoding:
        return self


class Logarithms(_Ready):
    """log(x + 1), where negative and missing numbers are 0, as the authors of DLRM treat Criteo's counts.

    Source: github.com/facebookresearch/dlrm, data_utils.py.
    """

    def __init__(self, features: int):
        self._features = features

    def encode(self, dense_NF: NDArray[np.float64]) -> NDArray[np.float32]:
        """(N, F); NaN stands for missing."""
        return np.asarray(np.log1p(np.maximum(np.nan_to_num(dense_NF), 0)), dtype=np.float32)

    def facts(self) -> list[dict[str, Any]]:
        return [{"made": "log(x + 1)"}] * self._features


class Standardised(_Ready):
    """(x − mean) / standard deviation. A missing number is 0, which is the mean."""

    def __init__(self, mean_F: NDArray[np.float64], deviation_F: NDArray[np.float64]):
        self._mean, self._deviation = mean_F, deviation_F

    def encode(self, dense_NF: NDArray[np.float64]) -> NDArray[np.float32]:
        """(N, F); NaN stands for missing. Raises DataError for a number that 32 bits do not hold after this."""
        scaled_NF = np.nan_to_num((dense_NF - self._mean) / self._deviation)
        too_large_NF = np.abs(scaled_NF) > np.finfo(np.float32).max
        if too_large_NF.any():
            raise DataError(
                f"number {dense_NF[too_large_NF][0]} is {abs(scaled_NF[too_large_NF][0]):.3g} standard deviations from "
                "the mean of train, and 32 bits hold 3.4e+38; remove its row"
            )
        return scaled_NF.astype(np.float32)

    def facts(self) -> list[dict[str, Any]]:
        moments = zip(self._mean.tolist(), self._deviation.tolist(), strict=True)
        return [{"made": "standardised", "mean": mean, "deviation": deviation} for mean, deviation in moments]


class Moments:
    """Mean and standard deviation of the numbers of train."""

    needs_fit = True

    def __init__(self, features: int):
        self._count, self._mean, self._squares = np.zeros(features), np.zeros(features), np.zeros(features)
        self._least, self._largest = np.full(features, np.inf), np.full(features, -np.inf)

    def fit(self, dense_NF: NDArray[np.float64]) -> None:
        """Joins the moments of parts as Chan, Golub and LeVeque (1979, "Updating formulae") do, which is exact."""
        present_NF = ~np.isnan(dense_NF)
        count_F = present_NF.sum(axis=0)
        mean_F = np.where(present_NF, dense_NF, 0).sum(axis=0) / np.maximum(count_F, 1)
        squares_F = (np.where(present_NF, dense_NF - mean_F, 0) ** 2).sum(axis=0)
        total_F, apart_F = np.maximum(self._count + count_F, 1), mean_F - self._mean
        self._squares += squares_F + apart_F**2 * self._count * count_F / total_F
        self._mean += apart_F * count_F / total_F
        self._count += count_F
        self._least = np.minimum(self._least, np.where(present_NF, dense_NF, np.inf).min(axis=0, initial=np.inf))
        self._largest = np.maximum(self._largest, np.where(present_NF, dense_NF, -np.inf).max(axis=0, initial=-np.inf))

    def learned(self) -> Standardised:
        deviation_F = np.sqrt(self._squares / np.maximum(self._count, 1))
        # The squares of equal numbers are rounding: their mean need not be their value, as that of many 0.1 is not.
        differ_F = (self._least < self._largest) & (deviation_F > 0)
        return Standardised(self._mean, np.where(differ_F, deviation_F, 1))


class HashedRows(_Ready):
    """Words hashed into rows 1..rows-1: numbers of 32 bits, which are hashes, by remainder, bytes by BLAKE2b."""

    def __init__(self, rows: int):
        self.rows = rows

    def encode(self, words_N: pa.Array) -> NDArray[np.int32]:
        if pa.types.is_integer(words_N.type):
            hash_N = words_N.fill_null(0).to_numpy().astype(np.int64)
            return np.where(as_mask(words_N.is_null()), 0, 1 + hash_N % (self.rows - 1)).astype(np.int32)
        return _by_distinct_word(words_N, lambda word: 1 + _hash(word) % (self.rows - 1))

    def facts(self) -> dict[str, str]:
        return {"made": "hashed"}


class Dictionary(_Ready):
    """A row for each of `words`, from 1 on."""

    def __init__(self, words: list[Any]):
        self.words, self.rows = words, 1 + len(words)
        self._row_of = {word: row for row, word in enumerate(words, start=1)}

    def encode(self, words_N: pa.Array) -> NDArray[np.int32]:
        return _by_distinct_word(words_N, lambda word: self._row_of.get(word, 0))

    def facts(self) -> dict[str, str]:
        return {"made": "dictionary"}


class WordCounts:
    """The words that occur at least `min_count` times in train, the most frequent first."""

    needs_fit = True

    def __init__(self, min_count: int):
        self._min_count, self._counts = min_count, Counter[Any]()

    def fit(self, words_N: pa.Array) -> None:
        """Counts words of rows of train. All distinct ones stay in memory."""
        for pair in words_N.drop_null().value_counts().to_pylist():
            self._counts[pair["values"]] += pair["counts"]

    def learned(self) -> Dictionary:
        kept = ((word, count) for word, count in self._counts.items() if count >= self._min_count)
        return Dictionary([word for word, _ in sorted(kept, key=lambda pair: (-pair[1], pair[0]))])


@dataclass
class Features:
    """The encoding of all numbers and of each column of words."""

    numbers: Logarithms | Standardised
    tables: Sequence[HashedRows | Dictionary]

    def encode(
        self, dense_NF: NDArray[np.float64], words_CN: list[pa.Array]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Numbers (N, F), and rows of tables (N, C)."""
        encoded_CN = [table.encode(words_N) for table, words_N in zip(self.tables, words_CN, strict=True)]
        return self.numbers.encode(dense_NF), np.stack(encoded_CN, axis=1)

    def facts(self, dense: tuple[str, ...], categories: tuple[str, ...]) -> dict[str, Any]:
        """For the manifest: names, how they were made, and the size of each table."""
        tables = zip(categories, self.tables, strict=True)
        return {
            "dense": [{"name": name, **made} for name, made in zip(dense, self.numbers.facts(), strict=True)],
            "categories": [{"name": name, **table.facts()} for name, table in tables],
            "table_rows": [table.rows for table in self.tables],
        }

    def words(self, categories: tuple[str, ...]) -> dict[str, list[str]]:
        """The words of each dictionary."""
        named = zip(categories, self.tables, strict=True)
        return {name: _written(table.words) for name, table in named if isinstance(table, Dictionary)}


@dataclass
class NewFeatures:
    """Features of which some may first have to learn from train."""

    numbers: Logarithms | Moments
    tables: Sequence[HashedRows | WordCounts]

    @classmethod
    def of(cls, dense: int, categories: int, log: bool, hash_rows: tuple[int, ...], min_count: int) -> "NewFeatures":
        """`hash_rows` has one size for each categorical feature, or is empty for dictionaries."""
        numbers = Logarithms(dense) if log or not dense else Moments(dense)
        hashed = [HashedRows(rows) for rows in hash_rows]
        return cls(numbers, hashed or [WordCounts(min_count) for _ in range(categories)])

    @property
    def needs_fit(self) -> bool:
        return any(part.needs_fit for part in (self.numbers, *self.tables))

    def fit(self, dense_NF: NDArray[np.float64], words_CN: list[pa.Array]) -> None:
        """Learns from rows of train."""
        self.numbers.fit(dense_NF)
        for table, words_N in zip(self.tables, words_CN, strict=True):
            table.fit(words_N)

    def learned(self) -> Features:
        return Features(self.numbers.learned(), [table.learned() for table in self.tables])


def for_each(hash_rows: tuple[int, ...], features: int) -> tuple[int, ...]:
    """A single number repeated for all features. Raises DataError if there are several, but not one for each."""
    if len(hash_rows) == 1:
        return hash_rows * features
    if hash_rows and len(hash_rows) != features:
        raise DataError(
            f"--hash-rows names {len(hash_rows)} tables and there are {features} categorical features; give one "
            "number for each, or one for all"
        )
    return hash_rows


def read_back(words: list[str], hexadecimal: bool) -> list[Any]:
    """The words of a dictionary from their text in a file."""
    return [int(word, 16) if hexadecimal else word.encode(errors="surrogateescape") for word in words]


def _written(words: list[Any]) -> list[str]:
    """Words as text: bytes that are not UTF-8 as lone surrogates, hashes as eight digits."""
    return [f"{word:08x}" if isinstance(word, int) else word.decode(errors="surrogateescape") for word in words]


def _by_distinct_word(words_N: pa.Array, row_of: Callable[[Any], int]) -> NDArray[np.int32]:
    encoded = words_N.dictionary_encode()
    row_U = np.array([row_of(word) for word in encoded.dictionary.to_pylist()] + [0], dtype=np.int32)
    row_N: NDArray[np.int32] = row_U[encoded.indices.fill_null(-1).to_numpy()]
    return row_N


def _hash(word: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "big")
