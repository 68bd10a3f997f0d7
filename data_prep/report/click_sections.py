"""The sections about a click log.

Shapes: N rows of the sample of a split, R rows of a table.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.clicks import ClickCorpus
from comera_dist.report.html.page import Head, Row
from data_prep.report.click_sample import ClickSample, occurring_rows
from data_prep.report.sections import Section, share

_LABEL_NOTE = (
    "Log-loss without features: in nats, of a prediction that is the clicked share of {first} for every row. A model "
    "that has learned anything is below it."
)
_NUMBER_HEADS = ("mean", "deviation", "least", "greatest", "zeros")
_TABLE_NOTE = "Rows that occur are those of all of {first}; shares are of the sample."
_TABLE_HEADS = ("rows of the table", "rows that occur", "share of row 0", "share of the most frequent row")


def click_sections(corpus: ClickCorpus, samples: list[ClickSample]) -> Iterator[Section]:
    first, *others = samples
    dense = _names(corpus.manifest["dense"], corpus.dense_features)
    categories = _names(corpus.manifest.get("categories"), len(corpus.table_rows))
    heads = [Head(sample.name) for sample in samples]
    yield Section("Size and labels", heads, list(_label_rows(samples)), note=_LABEL_NOTE.format(first=first.name))
    if dense:
        more = [f"mean of {other.name}" for other in others]
        rows = [Row(name, _number_cells(place, first, others)) for place, name in enumerate(dense)]
        yield Section(f"Numbers in {first.name}", _heads(*_NUMBER_HEADS, *more), rows)
    more = [f"rows of {other.name} that {first.name} has not" for other in others]
    occurs = occurring_rows(corpus, first.name)
    rows = [Row(name, _table_cells(place, occurs[place], samples)) for place, name in enumerate(categories)]
    yield Section(
        f"Categories in {first.name}", _heads(*_TABLE_HEADS, *more), rows, note=_TABLE_NOTE.format(first=first.name)
    )


def log_loss(label_N: NDArray[Any], predicted: float) -> float:
    """The mean log-loss of one prediction for all rows, in nats."""
    clicked = float(np.mean(label_N))
    odds = ((clicked, predicted), (1 - clicked, 1 - predicted))
    return sum(part * (-math.log(chance) if chance else math.inf) for part, chance in odds if part)


def _label_rows(samples: list[ClickSample]) -> Iterator[Row]:
    predicted = float(np.mean(samples[0].label_N))
    yield Row("rows", [f"{sample.rows:,}" for sample in samples])
    yield Row("rows in the sample", [f"{len(sample.label_N):,}" for sample in samples])
    yield Row("clicked", [share(int(sample.label_N.sum()), len(sample.label_N)) for sample in samples])
    yield Row("log-loss without features", [f"{log_loss(sample.label_N, predicted):.4f}" for sample in samples])


def _number_cells(place: int, first: ClickSample, others: list[ClickSample]) -> list[str]:
    column_N = first.dense_NF[:, place].astype(np.float64)
    figures = [column_N.mean(), column_N.std(), column_N.min(), column_N.max()]
    means = [other.dense_NF[:, place].astype(np.float64).mean() for other in others]
    zeros = share(int((column_N == 0).sum()), len(column_N))
    return [*(f"{figure:.4g}" for figure in figures), zeros, *(f"{mean:.4g}" for mean in means)]


def _table_cells(place: int, occurs_R: NDArray[np.bool_], samples: list[ClickSample]) -> list[str]:
    first_N, *others = (sample.categories_NC[:, place] for sample in samples)
    counts = np.unique(first_N, return_counts=True)[1]
    unseen = [share(int((~occurs_R[other_N]).sum()), len(other_N)) for other_N in others]
    shares = [share(int((first_N == 0).sum()), len(first_N)), share(int(counts.max()), len(first_N))]
    return [f"{len(occurs_R):,}", share(int(occurs_R.sum()), len(occurs_R)), *shares, *unseen]


def _names(entries: Any, count: int) -> list[str]:
    """Names of columns; their numbers if somebody changed the names in the manifest."""
    listed = entries if isinstance(entries, list) else []
    named = [entry.get("name") if isinstance(entry, dict) else entry for entry in listed]
    found = [name for name in named if isinstance(name, str)]
    return found if len(found) == count else [f"column {number}" for number in range(count)]


def _heads(*names: str) -> list[Head]:
    return [Head(name) for name in names]
