"""A sample of the rows of a click log, and the rows of tables that occur in all of them.

Shapes: N rows of the sample, F numbers, C categories, R rows of a table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.clicks import ClickCorpus
from comera_dist.errors import DataError
from data_prep.report.sampling import even_runs

_BLOCK = 1 << 16  # chosen: rows that are read at once


@dataclass(frozen=True)
class ClickSample:
    """Rows of one split."""

    name: str
    rows: int  # of the whole split
    label_N: NDArray[Any]
    dense_NF: NDArray[Any]
    categories_NC: NDArray[Any]


def sampled_rows(corpus: ClickCorpus, split: str, wanted: int) -> ClickSample:
    """About `wanted` rows, all if there are no more.

    Raises DataError if a file was cut, a label is not 0 or 1, or a table does not have a row.
    """
    columns = corpus.split(split)
    rows = len(columns["labels"])
    corpus.check_sizes(split)
    runs = even_runs(rows, wanted / max(1, rows))

    def gathered(name: str, width: int) -> NDArray[Any]:
        column = columns[name].reshape(rows, width) if width else np.empty((rows, 0))
        return np.concatenate([column[start:stop] for start, stop in runs])

    label_N, dense_NF = gathered("labels", 1)[:, 0], gathered("dense", corpus.dense_features)
    if not np.isin(label_N, (0, 1)).all():
        raise DataError(f"{corpus.path} holds a label that is neither 0 nor 1; {corpus.contents.remedy}")
    categories_NC = gathered("categories", len(corpus.table_rows))
    corpus.check_ids(categories_NC)
    return ClickSample(split, rows, label_N, dense_NF, categories_NC)


def occurring_rows(corpus: ClickCorpus, split: str) -> list[NDArray[np.bool_]]:
    """Whether each row of each table occurs (R,). All rows of the split are read: a sample would miss most rare words.

    Raises DataError for a row that a table does not have.
    """
    sizes, column = corpus.table_rows, corpus.split(split)["categories"]
    categories_NC, occurs = column.reshape(-1, len(sizes)), [np.zeros(size, dtype=bool) for size in sizes]
    for start in range(0, len(categories_NC), _BLOCK):
        block_NC = categories_NC[start : start + _BLOCK]
        corpus.check_ids(block_NC)
        for occurs_R, row_N in zip(occurs, block_NC.T, strict=True):
            occurs_R[row_N] = True
    return occurs
