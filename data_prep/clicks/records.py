"""A click log in text files, read block by block.

It is read twice if its training rows must be learned from first (words of a dictionary, mean and deviation), else once.

Shapes: N rows of a block, F dense features, C categorical features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.clicks import columns
from data_prep.clicks.columns import Join, LabelRule, ParsedColumns
from data_prep.clicks.features import Features, NewFeatures
from data_prep.files import blocks
from data_prep.files.blocks import Block, TextTable
from data_prep.files.skips import Skips

SKIPPED = (*blocks.FAULTS, *columns.FAULTS)


class Clicks(NamedTuple):
    number_N: NDArray[np.int64]  # of each row in the source; it decides the split if `split` is None
    labels_N: NDArray[np.int8]
    dense_NF: NDArray[np.float32]
    categories_NC: NDArray[np.int32]
    best_loss_N: NDArray[np.float64] | None = None  # log-loss, in nats, of a predictor that knows the true probability
    split: str | None = None  # of all these rows


class Records(NamedTuple):
    number_N: NDArray[np.int64]
    labels_N: NDArray[np.int8]
    dense_NF: NDArray[np.float64]  # NaN if missing
    words_CN: list[pa.Array]  # bytes or uint32, null if missing


@dataclass(frozen=True)
class Layout:
    """The tables of a log and the use of their columns. `joined` adds columns of a table by a key that both have.

    `label` is None for rows to be scored, which nobody has labelled.
    """

    tables: tuple[TextTable, ...]
    label: LabelRule | None
    dense: tuple[str, ...]
    categories: tuple[str, ...]
    hexadecimal: bool = False
    joined: tuple[TextTable, str] | None = None

    def notes(self) -> list[str]:
        """Lines about the files for the report."""
        unnamed = [table.path for table in self.tables if "" in table.columns]
        return [f"{path}: the first column has no name and is left out" for path in unnamed]

    def columns_of(self, table: TextTable) -> set[str]:
        """Names of the columns of a table, with joined ones."""
        return {*table.names, *(self.joined[0].names if self.joined else ())}

    def open_join(self, skips: Skips) -> Join | None:
        """The joined table, read once for all layouts that have it: its faults count once."""
        return Join(*self.joined, skips) if self.joined else None

    def blocks(self, skips: Skips, join: Join | None) -> Iterator[Block]:
        """The rows of all tables, with joined columns."""
        for table in self.tables:
            for block in table.blocks(skips):
                yield join.add_to(block) if join else block

    def records(self, skips: Skips, join: Join | None) -> Iterator[Records]:
        """The rows of all tables without a fault. Needs a label."""
        assert self.label is not None, "rows of a data set have a label"
        first = 0
        for block in self.blocks(skips, join):
            number_N = np.arange(first, first + block.rows)
            first += block.rows
            parsed = ParsedColumns(block, skips)
            labels_N = parsed.labels(self.label)
            yield _chosen(Records(number_N, labels_N, *self.features(parsed)), parsed.good_N)

    def features(self, parsed: ParsedColumns) -> tuple[NDArray[np.float64], list[pa.Array]]:
        """The numbers (N, F), NaN if missing, and the columns of words of a block."""
        dense_FN = [parsed.numbers(name) for name in self.dense]
        parse = parsed.hexadecimals if self.hexadecimal else parsed.words
        words_CN = [parse(name) for name in self.categories]
        dense_NF = np.stack(dense_FN, axis=1) if dense_FN else np.empty((len(parsed.good_N), 0))
        return dense_NF, words_CN


def _chosen(records: Records, keep_N: NDArray[np.bool_]) -> Records:
    """The rows where `keep_N` is true."""
    if keep_N.all():
        return records
    return Records(
        records.number_N[keep_N],
        records.labels_N[keep_N],
        records.dense_NF[keep_N],
        [words_N.filter(pa.array(keep_N)) for words_N in records.words_CN],
    )


class TextClicks:
    """A click log in text files. `held` are further layouts by the split of all their rows."""

    rows = None

    def __init__(self, layout: Layout, features: Features | NewFeatures, held: dict[str, Layout]):
        self.dense, self.categories = layout.dense, layout.categories
        self._layout, self._features, self._held = layout, features, held
        self.notes = [note for each in (layout, *held.values()) for note in each.notes()]

    @property
    def needs_fit(self) -> bool:
        return isinstance(self._features, NewFeatures)

    def fit(self, is_train: Callable[..., Any], skips: Skips, advance: Callable[[int], None]) -> None:
        new = self._features
        assert isinstance(new, NewFeatures), "these features have nothing to learn"
        for records in self._layout.records(skips, self._layout.open_join(skips)):
            train = _chosen(records, is_train(records.number_N))
            new.fit(train.dense_NF, train.words_CN)
            advance(len(records.number_N))
        self._features = new.learned()

    def clicks(self, skips: Skips) -> Iterator[Clicks]:
        join = self._layout.open_join(skips)
        for split, layout in ((None, self._layout), *self._held.items()):
            for records in layout.records(skips, join):
                encoded = self._learned.encode(records.dense_NF, records.words_CN)
                yield Clicks(records.number_N, records.labels_N, *encoded, split=split)
        if join:
            join.check()
            self.notes += join.notes()

    def facts(self) -> dict[str, Any]:
        return self._learned.facts(self.dense, self.categories)

    def words(self) -> dict[str, list[str]]:
        return self._learned.words(self.categories)

    @property
    def _learned(self) -> Features:
        assert isinstance(self._features, Features), "these features have not learned yet"
        return self._features
