"""The page about prepared data of one kind."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.data_tokenizer import tokenizer_of
from comera_dist.errors import DataError
from comera_dist.report.html.page import Head, Row, render
from data_prep.files.progress import Bar
from data_prep.report.click_sample import sampled_rows
from data_prep.report.click_sections import click_sections
from data_prep.report.findings import Findings
from data_prep.report.sections import Section
from data_prep.report.text_sections import text_sections
from data_prep.report.texts import open_texts

_TEMPLATE = Path(__file__).with_name("page.html")


class Report(NamedTuple):
    page: str
    samples: list[str]  # a line for each split, about the part that was read


def text_report(folder: Path, kind: str, wanted: int, similarity: float) -> Report:
    """About `wanted` documents, or pairs, of each split are read. Raises DataError if data are damaged or missing."""
    corpus, splits = open_texts(folder, kind)
    tokenizer, found = tokenizer_of(corpus), list[Findings]()
    with Bar() as bar:
        for split in splits:
            bar.begin(f"reading {split.name}", min(wanted, split.documents))
            one = Findings(split, tokenizer.vocab_size, similarity)
            one.read(bar.counted(split.read(wanted)), tokenizer.decode, found[0].near if found else None)
            _check_not_empty(folder, split.name, one.samples)
            found.append(one)
    things = "pairs" if kind == "pairs" else "documents"
    samples = [_sample_line(one.split.name, one.samples, one.split.documents, things) for one in found]
    sections = text_sections(found, things, tokenizer, similarity)
    return Report(_page(folder, corpus.manifest, corpus.fingerprint, sections, samples), samples)


def click_report(folder: Path, wanted: int) -> Report:
    """About `wanted` rows of each split are read. Raises DataError if the data are damaged or missing."""
    corpus = ClickCorpus(folder)
    for name, columns in corpus.splits.items():
        _check_not_empty(folder, name, len(columns["labels"]))
    found = [sampled_rows(corpus, name, wanted) for name in corpus.splits]
    samples = [_sample_line(one.name, len(one.label_N), one.rows, "rows") for one in found]
    sections = click_sections(corpus, found)
    return Report(_page(folder, corpus.manifest, corpus.fingerprint, sections, samples), samples)


def _check_not_empty(folder: Path, split: str, count: int) -> None:
    if not count:
        raise DataError(f"split {split!r} of {folder} holds nothing to describe; prepare the data with more sources")


def _sample_line(split: str, count: int, total: int, things: str) -> str:
    read = f"all {total:,} {things}" if count >= total else f"a sample of {count:,} of {total:,} {things}"
    return f"{split}: {read}"


def _page(
    folder: Path, manifest: dict[str, Any], fingerprint: str, sections: Iterable[Section], samples: list[str]
) -> str:
    return render(
        _TEMPLATE,
        title=folder.resolve().name,
        about=f"Data set {fingerprint[:12]}. Read for this page, spread evenly over each split: {'; '.join(samples)}.",
        sections=[*sections, *_skipped(manifest)],
        settings=json.dumps(manifest.get("parameters", {}), indent=1, ensure_ascii=False),
    )


def _skipped(manifest: dict[str, Any]) -> Iterator[Section]:
    """The parts of the source that the preparation left out, of the kinds that occurred."""
    skipped = manifest.get("skipped")
    counts = skipped.items() if isinstance(skipped, dict) else ()
    rows = [
        Row(str(kind).replace("_", " "), [f"{count:,}"]) for kind, count in counts if isinstance(count, int) and count
    ]
    if rows:
        yield Section("Left out by the preparation", [Head("count")], rows)
