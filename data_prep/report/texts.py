"""Splits of tokenized text and of text pairs, as documents that a report reads in one way.

Shapes: N pairs of a run of neighbours.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.columns import Columns
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.errors import DataError
from data_prep.report.sampling import even_runs, sampled_documents

_UNLABELLED = "unlabelled"


class Sample(NamedTuple):
    """One document: its texts as ids of the tokenizer, two of a pair. `label` is None where there are no labels."""

    texts: list[NDArray[np.int64]]
    label: str | None = None


class TextSplit(NamedTuple):
    """`bytes` of text is None where the manifest does not tell it. `read` yields about the wanted number of samples."""

    name: str
    documents: int
    tokens: int
    bytes: int | None
    read: Callable[[int], Iterator[Sample]]


def open_texts(folder: Path, kind: str) -> tuple[Corpus | PairCorpus, list[TextSplit]]:
    """The data of `kind` "text" or "pairs", and their splits. Raises DataError if the data are damaged."""
    if kind == "pairs":
        pairs = PairCorpus(folder)
        return pairs, [_pair_split(pairs, name, columns) for name, columns in pairs.splits.items()]
    corpus = Corpus(folder)
    return corpus, [
        TextSplit(name, split.documents, split.tokens, split.bytes, partial(_read_text, corpus, name))
        for name, split in corpus.splits.items()
    ]


def _read_text(corpus: Corpus, split: str, wanted: int) -> Iterator[Sample]:
    return (Sample([ids]) for ids in sampled_documents(corpus.split(split), wanted))


def _pair_split(corpus: PairCorpus, name: str, columns: Columns) -> TextSplit:
    return TextSplit(
        name, len(columns["labels"]), len(columns["tokens"]), None, partial(_read_pairs, corpus, name, columns)
    )


def _read_pairs(corpus: PairCorpus, split: str, columns: Columns, wanted: int) -> Iterator[Sample]:
    """Raises DataError if a file was cut, or a place, token or label is out of its range."""
    names = [*corpus.labels, _UNLABELLED]  # a pair without a label has the number -1
    for start, stop in even_runs(len(columns["labels"]), wanted / max(1, len(columns["labels"]))):
        corpus.check_sizes(split)
        labels_N, places = columns["labels"][start:stop].astype(np.int64), _places(corpus, columns, start, stop)
        corpus.check_labels(labels_N)
        for number, label in enumerate(labels_N.tolist()):
            begin, middle, end = places[2 * number : 2 * number + 3]
            texts = [_ids(corpus, columns["tokens"][part]) for part in (slice(begin, middle), slice(middle, end))]
            yield Sample(texts, names[label] if corpus.labels else None)


def _places(corpus: PairCorpus, columns: Columns, start: int, stop: int) -> list[int]:
    """The begin of pair `start` among the tokens, then the ends of both texts of each pair, (2N + 1)."""
    ends_N2 = np.stack([columns[name][start:stop] for name in ("first_end", "second_end")], axis=1)
    places = [int(columns["second_end"][start - 1]) if start else 0, *ends_N2.ravel().tolist()]
    if places != sorted(places) or places[0] < 0 or places[-1] > len(columns["tokens"]):
        raise DataError(f"{corpus.path} has a pair that ends before it begins; {corpus.contents.remedy}")
    return places


def _ids(corpus: PairCorpus, tokens: NDArray[Any]) -> NDArray[np.int64]:
    ids = tokens.astype(np.int64)
    corpus.check_below("token", int(ids.max(initial=0)), corpus.vocab_size)
    if len(ids) and int(ids.min()) < SPECIALS:
        raise DataError(f"{corpus.path} holds a special token inside of a text; {corpus.contents.remedy}")
    return ids - SPECIALS
