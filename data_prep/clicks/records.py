"""A click log in text files, read block by block.

It is read twice where its training rows must be learned from first (words of a dictionary, mean and deviation), else
once. Shapes: N rows of a block, F dense features, C categorical features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from data_prep.clicks import columns
from data_prep.clicks.columns import Join, LabelRule, ParsedColumns
from data_prep.clicks.features import Features
from data_prep.files import blocks
from data_prep.files.blocks import Block, TextTable
from data_prep.files.skips import Skips

SKIPPED = (*blocks.FAULTS, *columns.FAULTS)


class Clicks(NamedTuple):
    number_N: np.ndarray  # of each row in the source, which decides its split where `split` is None
    labels_N: np.ndarray
    dense_NF: np.ndarray
    categories_NC: np.ndarray
    best_loss_N: np.ndarray | None = None  # log-loss in nats of a predictor that knows the true click probability
    split: str | None = None  # of all these rows


class Records(NamedTuple):
    number_N: np.ndarray
    labels_N: np.ndarray
    dense_NF: np.ndarray  # float64, NaN where missing
    words_CN: list[pa.Array]  # bytes or uint32, null where missing


@dataclass(frozen=True)
class Layout:
    """The tables of a log and the use of their columns. `joined` adds columns of a table by a key that both have."""

    tables: tuple[TextTable, ...]
    label: LabelRule
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    hexadecimal: bool = False
    joined: tuple[TextTable, str] | None = None

    def notes(self) -> list[str]:
        """Lines about the files for the report."""
        unnamed = [table.path for table in self.tables if "" in table.columns]
        return [f"{path}: the first column has no name and is left out" for path in unnamed]

    def records(self, skips: Skips) -> Iterator[Records]:
        join = Join(*self.joined, skips) if self.joined else None
        first = 0
        for table in self.tables:
            for block in table.blocks(skips):
                number_N = np.arange(first, first + block.rows)
                first += block.rows
                yield self._records(join.add_to(block) if join else block, number_N, skips)

    def _records(self, block: Block, number_N: np.ndarray, skips: Skips) -> Records:
        parsed = ParsedColumns(block, skips)
        labels_N = parsed.labels(self.label)
        dense_FN = [parsed.numbers(name) for name in self.dense]
        parse = parsed.hexadecimals if self.hexadecimal else parsed.words
        words_CN = [parse(name) for name in self.categories]
        keep_N = parsed.good_N
        dense_NF = np.stack(dense_FN, axis=1) if dense_FN else np.empty((len(number_N), 0))
        if not keep_N.all():
            words_CN = [words_N.filter(pa.array(keep_N)) for words_N in words_CN]
        return Records(number_N[keep_N], labels_N[keep_N], dense_NF[keep_N], words_CN)


class TextClicks:
    """A click log in text files. `held` are further layouts by the split that all their rows belong to."""

    rows = None

    def __init__(self, layout: Layout, features: Features, held: dict[str, Layout]):
        self.dense, self.categories = layout.dense, layout.categories
        self._layout, self._features, self._held = layout, features, held
        self.needs_fit = features.needs_fit
        self.notes = [note for each in (layout, *held.values()) for note in each.notes()]

    def fit(self, is_train: Callable[[np.ndarray], np.ndarray], skips: Skips, advance: Callable[[int], None]) -> None:
        for records in self._layout.records(skips):
            train_N = is_train(records.number_N)
            words_CN = [words_N.filter(pa.array(train_N)) for words_N in records.words_CN]
            self._features.fit(records.dense_NF[train_N], words_CN)
            advance(len(records.number_N))
        self._features = self._features.learned()

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        for split, layout in {None: self._layout, **self._held}.items():
            for records in layout.records(skips):
                encoded = self._features.encode(records.dense_NF, records.words_CN)
                yield Clicks(records.number_N, records.labels_N, *encoded, split=split)

    def facts(self) -> dict:
        return self._features.facts(self.dense, self.categories)

    def words(self) -> dict[str, list[str]]:
        return self._features.words(self.categories)
