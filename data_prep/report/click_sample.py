"""A sample of the rows of a click log.

Shapes: N rows of the sample, F numbers, C categories.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.clicks import ClickCorpus
from comera_dist.errors import DataError
from data_prep.report.sampling import even_runs


@dataclass(frozen=True)
class ClickSample:
    """Rows of one split."""

    name: str
    rows: int  # of the whole split
    label_N: NDArray[Any]
    dense_NF: NDArray[Any]
    categories_NC: NDArray[Any]


def sampled_rows(corpus: ClickCorpus, split: str, wanted: int) -> ClickSample:
    """About `wanted` rows, all if there are no more. Raises DataError if a file was cut, or a label is not 0 or 1."""
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
    return ClickSample(split, rows, label_N, dense_NF, gathered("categories", len(corpus.table_rows)))
