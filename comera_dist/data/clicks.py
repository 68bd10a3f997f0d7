"""Rows of a click log as rows of batches.

Legend: B rows of a batch, F dense features, C categorical features, N scored rows, U distinct scores.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from comera_dist.data.batches import FILLER
from comera_dist.data.columns import MOST_IDS, ColumnSet
from comera_dist.data.manifest import ManifestError
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET


class ClickBatch(NamedTuple):
    dense_BF: torch.Tensor
    categories_BC: torch.Tensor  # row of each feature's table
    targets_B: torch.Tensor  # 1 clicked, 0 not


class ClickCorpus:
    """A click log that data_prep/prepare_clicks.py prepared. DataError where it is missing or damaged."""

    def __init__(self, path: str | Path):
        self._columns = ColumnSet(path, "clicks")
        self.path, self.manifest, self.fingerprint = Path(path), self._columns.manifest, self._columns.fingerprint
        self.contents, fields = self._columns.contents, self._columns.fields
        try:
            self.dense_features = len(fields.items_of("dense"))
            self.table_rows: tuple[int, ...] = tuple(fields.wholes("table_rows", 1, MOST_IDS))
            for split, columns in self._columns.splits.items():
                self._check_columns(split, columns)
        except ManifestError as error:
            raise self._columns.undescribed(error) from error

    def split(self, name: str) -> dict[str, np.ndarray]:
        """Memory maps `dense` (rows, F), absent where F = 0, `categories` (rows, C) and `labels` (rows,).

        DataError where there is no such split.
        """
        return self._columns.split(name)

    def check_sizes(self, split: str) -> None:
        """DataError where a file of `split` was cut meanwhile."""
        self._columns.check_sizes(split)

    def _check_columns(self, split: str, columns: dict[str, np.ndarray]) -> None:
        """ManifestError unless each row has a label and as many numbers and categories as there are features."""
        widths = {"dense": self.dense_features, "categories": len(self.table_rows), "labels": 1}
        missing = [name for name, width in widths.items() if width and name not in columns]
        if missing:
            raise ManifestError(f"splits.{split}.{missing[0]} is missing")
        rows = len(columns["labels"])
        for name, width in widths.items():
            found = columns[name].size if name in columns else 0
            if found != rows * width:
                raise ManifestError(f"splits.{split}.{name} has {found} numbers, expected {rows} rows of {width}")


class ClickExamples:
    """The rows of one split. DataError when it is empty."""

    def __init__(self, corpus: ClickCorpus, name: str):
        columns = corpus.split(name)
        rows = len(columns["labels"])
        if not rows:
            raise DataError(
                f"Split {name!r} of {corpus.path} has no row; prepare more rows, or a larger share of them for it."
            )
        # A column of width 1 is mapped as (rows,); plain arrays are gathered from faster than the class of the map.
        self._labels = np.asarray(columns["labels"])
        self._categories = np.asarray(columns["categories"]).reshape(rows, len(corpus.table_rows))
        dense = columns["dense"] if corpus.dense_features else np.empty(0, dtype=np.float32)
        self._dense = np.asarray(dense).reshape(rows, corpus.dense_features)
        self._corpus, self._name, self._table_rows_C = corpus, name, np.array(corpus.table_rows)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> ClickBatch:
        """The rows `row_B`, where FILLER is one of zeros without a target; nothing about them is random."""
        self._corpus.check_sizes(self._name)
        filler_B = row_B == FILLER
        kept_B = np.where(filler_B, 0, row_B)
        dense_BF = self._dense[kept_B].astype(np.float32)
        categories_BC = self._categories[kept_B].astype(np.int64)
        targets_B = self._labels[kept_B].astype(np.int64)
        self._check_ids(categories_BC)
        dense_BF[filler_B], categories_BC[filler_B], targets_B[filler_B] = 0, 0, IGNORED_TARGET
        return ClickBatch(torch.from_numpy(dense_BF), torch.from_numpy(categories_BC), torch.from_numpy(targets_B))

    def _check_ids(self, categories_BC: np.ndarray) -> None:
        outside_BC = (categories_BC < 0) | (categories_BC >= self._table_rows_C)
        if outside_BC.any():
            row, feature = np.argwhere(outside_BC)[0]
            raise DataError(
                f"{self._corpus.path} holds row {categories_BC[row, feature]} of table {feature}, which has "
                f"{self._table_rows_C[feature]}; {self._corpus.contents.remedy}."
            )


def auc(scores_N: np.ndarray | torch.Tensor, labels_N: np.ndarray | torch.Tensor) -> float:
    """Area under the ROC curve: how often a clicked row scores above one that was not, a tie counting half.

    Arrays or tensors; rows labelled IGNORED_TARGET are left out. NaN where one of the classes is missing or a score is
    NaN. Computed from the sum of ranks (Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve").
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


def _as_array(values: np.ndarray | torch.Tensor) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)
