"""The sections about tokenized text and about text pairs."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from comera_dist.data.tokenizer import Tokenizer
from comera_dist.report.html.drawing import COLOURS
from comera_dist.report.html.page import Head, Row
from data_prep.report.charts import frequency_chart, length_chart
from data_prep.report.findings import Findings
from data_prep.report.sections import Section, share

_SHOWN = 20  # chosen: rows of a table of the most frequent things
_ZIPF_NOTE = (
    "The share of each token against its rank. Zipf's law, which words of most languages follow, is a line here."
)
_SCRIPT_NOTE = "Shares of the characters, without digits, spaces and marks, which many scripts use."
_LANGUAGE_NOTE = (
    "ISO 639 codes of the languages in which {things} begin. The code und stands for a language that cannot be told "
    "with confidence, as of very short texts or of program code without comments, and zxx for no language."
)
_COPIES_NOTE = (
    "Exact copies are {things} that equal earlier ones up to white space, near copies are similar to earlier ones by "
    "{similarity:g} or more of their runs of five words (estimated by MinHash), exact ones included. Where a split is "
    "read in part, copies outside of the sample are not found, so these shares are then too low."
)


def text_sections(found: list[Findings], things: str, tokenizer: Tokenizer, similarity: float) -> Iterator[Section]:
    """`things` is what a document is called: documents or pairs."""
    heads = [Head(one.split.name, colour) for one, colour in zip(found, COLOURS, strict=False)]
    yield Section("Size", heads, _rows(found, _SIZES, things))
    if any(one.labels for one in found):
        yield Section("Labels", heads, _shares(found, lambda one: one.labels))
    yield Section("Lengths", heads, _rows(found, _LENGTHS, things), length_chart(found))
    yield Section(
        "Copies", heads, _rows(found, _COPIES, things), note=_COPIES_NOTE.format(similarity=similarity, things=things)
    )
    yield Section("Scripts", heads, _shares(found, lambda one: one.writing.scripts), note=_SCRIPT_NOTE)
    yield Section(
        "Languages", heads, _shares(found, lambda one: one.writing.languages), note=_LANGUAGE_NOTE.format(things=things)
    )
    yield Section("Tokens", heads, _rows(found, _VOCABULARY, things), frequency_chart(found), _ZIPF_NOTE)
    yield Section("Most frequent tokens", heads, _token_rows(found, tokenizer))


_SIZES: dict[str, Callable[[Findings], str]] = {
    "documents": lambda one: f"{one.split.documents:,}",
    "documents in the sample": lambda one: f"{one.samples:,}",
    "tokens": lambda one: f"{one.split.tokens:,}",
    "MB of text": lambda one: f"{one.split.bytes / 1e6:,.1f}" if one.split.bytes is not None else "–",
    "bytes a token": lambda one: f"{one.split.bytes / max(1, one.split.tokens):.2f}" if one.split.bytes else "–",
}
_LENGTHS: dict[str, Callable[[Findings], str]] = {
    "mean, in tokens": lambda one: f"{np.mean(one.lengths):,.1f}",
    "shortest": lambda one: f"{min(one.lengths):,}",
    "a tenth is shorter than": lambda one: f"{np.quantile(one.lengths, 0.1):,.0f}",
    "half are shorter than": lambda one: f"{np.median(one.lengths):,.0f}",
    "a tenth is longer than": lambda one: f"{np.quantile(one.lengths, 0.9):,.0f}",
    "longest": lambda one: f"{max(one.lengths):,}",
}
_COPIES: dict[str, Callable[[Findings], str]] = {
    "exact copies of earlier documents": lambda one: share(one.exact_copies, one.samples),
    "near copies of earlier documents": lambda one: share(one.near_copies, one.samples),
    "near copies of documents of train": lambda one: (
        "–" if one.split.name == "train" else share(one.near_train, one.samples)
    ),
}
_VOCABULARY: dict[str, Callable[[Findings], str]] = {
    "tokens in the sample, without the ends of texts": lambda one: f"{int(one.count_V.sum()):,}",
    "share of the vocabulary that occurs": lambda one: share(int(np.count_nonzero(one.count_V)), len(one.count_V)),
}


def _rows(found: list[Findings], figures: dict[str, Callable[[Findings], str]], things: str) -> list[Row]:
    return [Row(name.replace("documents", things), [figure(one) for one in found]) for name, figure in figures.items()]


def _shares(found: list[Findings], counts: Callable[[Findings], Counter[str]]) -> list[Row]:
    """A row for each name that a split counts, the most frequent ones of the first split first."""
    together = sum((Counter(dict(counts(one).most_common(_SHOWN))) for one in found), Counter[str]())
    return [
        Row(name, [share(counts(one)[name], counts(one).total()) for one in found])
        for name, _ in together.most_common(_SHOWN)
    ]


def _token_rows(found: list[Findings], tokenizer: Tokenizer) -> list[Row]:
    surfaces, first = tokenizer.surfaces(), found[0].count_V
    most = np.argsort(-first, kind="stable")[:_SHOWN]
    return [
        Row(f"{surfaces[token]!r} (id {token})", [share(one.count_V[token], one.count_V.sum()) for one in found])
        for token in most.tolist()
        if first[token]
    ]
