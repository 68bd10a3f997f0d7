"""Rows of a click log as rows of batches.

Shapes: B rows of a batch, F dense features, C categorical features, N scored rows, U distinct scores.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comera_dist.data.batches import FILLER
from comera_dist.data.columns import Columns, ColumnSet
from comera_dist.data.manifest import ClicksManifest
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET


class ClickBatch(NamedTuple):
    dense_BF: Tensor
    categories_BC: Tensor  # row of each feature's table
    targets_B: Tensor  # 1 clicked, 0 not


class ClickCorpus(ColumnSet):
    """A click log that data_prep/prepare_clicks.py made.

    Columns of a split: `dense` (rows, F), absent if F = 0, `categories` (rows, C), `labels` (rows,).
    """

    def __init__(self, path: str | Path):
        super().__init__(path, "clicks")
        record = self._described_by(ClicksManifest)
        self.dense_features, self.table_rows = len(record.dense), tuple(record.table_rows)
        for split, columns in self.splits.items():
            self._check_columns(split, columns)
        self._table_rows_C = np.array(self.table_rows)

    def check_ids(self, categories_BC: NDArray[np.integer[Any]]) -> None:
        """Raises DataError for a row that its table does not have; B rows of C categories."""
        outside_BC = (categories_BC < 0) | (categories_BC >= self._table_rows_C)
        if outside_BC.any():
            row, feature = np.argwhere(outside_BC)[0]
            raise DataError(
                f"{self.path} holds row {categories_BC[row, feature]} of table {feature}, which has "
                f"{self._table_rows_C[feature]}; {self.contents.remedy}"
            )

    def _check_columns(self, split: str, columns: Columns) -> None:
        """Raises DataError unless each row has a label and as many numbers and categories as there are features."""
        widths = {"labels": 1, "dense": self.dense_features, "categories": len(self.table_rows)}
        for name, width in widths.items():
            if width and name not in columns:
                raise self._misdescribed(f"splits.{split}.{name} is missing")
            rows, found = len(columns["labels"]), columns[name].size if name in columns else 0
            if found != rows * width:
                raise self._misdescribed(f"splits.{split}.{name} has {found} numbers, expected {rows} rows of {width}")


class ClickExamples:
    """The rows of one split. Raises DataError if it is empty."""

    def __init__(self, corpus: ClickCorpus, name: str):
        columns = corpus.split(name)
        rows = len(columns["labels"])
        if not rows:
            raise DataError(
                f"split {name!r} of {corpus.path} has no row; prepare more rows, or a larger share of them for it"
            )
        # A column of width 1 is mapped as (rows,). Gathering from plain arrays is faster than from np.memmap.
        self._labels = np.asarray(columns["labels"])
        self._categories = np.asarray(columns["categories"]).reshape(rows, len(corpus.table_rows))
        dense = columns["dense"] if corpus.dense_features else np.empty(0, dtype=np.float32)
        self._dense = np.asarray(dense).reshape(rows, corpus.dense_features)
        self._corpus, self._name = corpus, name

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> ClickBatch:
        """The rows `row_B`; nothing in them is random. A row FILLER is zeros with IGNORED_TARGET."""
        self._corpus.check_sizes(self._name)
        filler_B = row_B == FILLER
        kept_B = np.where(filler_B, 0, row_B)
        dense_BF = self._dense[kept_B].astype(np.float32)
        categories_BC = self._categories[kept_B].astype(np.int64)
        targets_B = self._labels[kept_B].astype(np.int64)
        self._corpus.check_ids(categories_BC)
        self._check("label", targets_B, (targets_B == 0) | (targets_B == 1), "0 or 1")
        self._check("number", dense_BF, np.isfinite(dense_BF), "a finite one")
        dense_BF[filler_B], categories_BC[filler_B], targets_B[filler_B] = 0, 0, IGNORED_TARGET
        return ClickBatch(*map(torch.from_numpy, (dense_BF, categories_BC, targets_B)))

    def _check(self, what: str, values: NDArray[Any], is_good: NDArray[np.bool_], expected: str) -> None:
        if not is_good.all():
            found = values[~is_good][0]
            raise DataError(
                f"{self._corpus.path} holds the {what} {found}, expected {expected}; {self._corpus.contents.remedy}"
            )


def auc(scores_N: NDArray[Any] | Tensor, labels_N: NDArray[Any] | Tensor) -> float:
    """Area under the ROC curve: how often a clicked row scores above one that was not, a tie counting half.

    Rows labelled IGNORED_TARGET are left out. NaN if a class is missing or a score is NaN. Computed from the sum of
    ranks (Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve").
    """
    scores_N, labels_N = _as_array(scores_N), _as_array(labels_N)
    counted_N = labels_N != IGNORED_TARGET
    scores_N, clicked_N = scores_N[counted_N], labels_N[counted_N] == 1
    clicked, others = int(clicked_N.sum()), int((~clicked_N).sum())
    if not clicked or not others or np.isnan(scores_N).any():
        return float("nan")
    _, value_N, count_U = np.unique(scores_N, return_inverse=True, return_counts=True)
    last_U = np.cumsum(count_U)
    rank_sum = float((last_U - (count_U - 1) / 2)[value_N[clicked_N]].sum())
    return (rank_sum - clicked * (clicked + 1) / 2) / (clicked * others)


def _as_array(values: NDArray[Any] | Tensor) -> NDArray[Any]:
    if isinstance(values, Tensor):  # numpy has no bfloat16
        values = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    return values
