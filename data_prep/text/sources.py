"""Sources of documents. Another kind is a class like these that is added to Documents.kinds."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from comera_dist.errors import DataError
from data_prep.files.finding import glob_paths, stdlib_paths
from data_prep.files.reading import COMPRESSIONS, is_utf8, suffix_of
from data_prep.files.rows import JSON_LINES, Table, file_table, hub_table
from data_prep.files.skips import Skips
from data_prep.files.sources import Sources
from data_prep.text.documents import read_documents

COPIES = "in_valid"  # of held-out documents
SKIPPED = ("empty", "bad_encoding", "broken_line", "broken_file", COPIES)
_TABLES = (".parquet", *JSON_LINES)


@dataclass(frozen=True)
class Reading:
    """How documents are found in tables, and in files of text."""

    text_key: str = "text"
    separator: re.Pattern[str] | None = None  # of the lines that end a document


class Document(NamedTuple):
    where: str
    words: str


class TextFiles:
    """Files of text, JSON lines or Parquet."""

    usage = "files:GLOB"

    def __init__(self, pattern: str, reading: Reading):
        self.paths, self._reading = self.find(pattern), reading

    def find(self, pattern: str) -> tuple[Path, ...]:
        return glob_paths(pattern)

    def size_hint(self) -> int | None:
        if any(path.suffix.lower() in (*COMPRESSIONS, ".parquet") for path in self.paths):
            return None
        return sum(path.stat().st_size for path in self.paths if path.exists())  # one may vanish meanwhile

    def read(self, skips: Skips) -> Iterator[Document]:
        for path in self.paths:
            if suffix_of(path) in _TABLES:
                yield from _texts(file_table(path, skips, self._reading.text_key), self._reading.text_key, skips)
            else:
                yield from map(Document._make, read_documents(path, skips, self._reading.separator))


class StandardLibrary(TextFiles):
    """The modules of the running interpreter's standard library."""

    usage = "python-stdlib"

    def find(self, pattern: str) -> tuple[Path, ...]:
        return stdlib_paths()


class HubTexts:
    """A column of a data set of the Hugging Face hub."""

    usage = "hub:NAME[:CONFIG[:SPLIT]]"
    paths: tuple[Path, ...] = ()

    def __init__(self, spec: str, reading: Reading):
        self._spec, self._reading = spec, reading

    def size_hint(self) -> None:
        return None

    def read(self, skips: Skips) -> Iterator[Document]:
        return _texts(hub_table(self._spec), self._reading.text_key, skips)


class Documents(Sources[Document]):
    """Raises DataError also if a source is named twice. A file that several sources name is read once."""

    kinds = (StandardLibrary, TextFiles, HubTexts)

    def __init__(self, specs: Sequence[str], reading: Reading = Reading()):
        twice = [spec for number, spec in enumerate(specs) if spec in specs[:number]]
        if twice:
            raise DataError(f"source {twice[0]!r} is named twice; name it once, its documents would count double")
        super().__init__(specs, reading)
        seen: set[str] = set()
        for source in self.sources:
            paths: dict[str, Path] = {}
            for path in source.paths:
                paths.setdefault(os.path.realpath(path), path)
            source.paths = tuple(path for real, path in paths.items() if real not in seen)
            seen |= paths.keys()

    def size_hint(self) -> int | None:
        """Bytes of text to expect, for the progress bar; None if only reading would tell."""
        sizes = [source.size_hint() for source in self.sources]
        return None if None in sizes else sum(sizes)

    def fault(self, item: Document) -> tuple[str, str] | None:
        if not item.words.strip():
            return "empty", "an empty document"
        return None if is_utf8(item.words) else ("bad_encoding", "bytes that are not UTF-8, or a lone surrogate")


def _texts(table: Table, key: str, skips: Skips) -> Iterator[Document]:
    for where, row in table.rows:
        table.check(row, (key,), option="text-key")
        text = row.get(key)
        if isinstance(text, str):
            yield Document(where, text)
        else:
            skips.add("broken_line", where, f"no text under {key!r} (see --text-key)")
