"""Sources of documents. Another kind is a class like these that is added to Documents.kinds.

Text is decoded as UTF-8 and kept to the byte: line ends are not translated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

from data_prep.files.finding import glob_paths, stdlib_paths
from data_prep.files.hub import HubStream, Place
from data_prep.files.reading import COMPRESSIONS, counting_breaks, is_utf8, open_decompressed, suffix_of
from data_prep.files.rows import JSON_LINES, Table, file_table, format_of
from data_prep.files.skips import Skips
from data_prep.files.sources import Sources, without_faults
from data_prep.text.separator import Separator

COPIES = "in_valid"  # of held-out documents
SKIPPED = ("empty", "bad_encoding", "broken_line", "broken_file", COPIES)
TEXT_KEY = "text"  # by default
_TABLES = (".parquet", *JSON_LINES)
# Not in SKIPPED, so it is counted only if it occurs: other manifests stay the same as in earlier versions.
BINARY = "binary"
_LOOK_LIKE_TABLES = (".json", ".csv", ".tsv")  # and are text here, unless a .json file holds JSON lines
_DECLARED_TEXT = (".txt", ".md", ".py")  # always text; files of other suffixes are searched for a NUL
_END_OF_DOCUMENT = r"<\|endoftext\|>"
_LOOKED_AT = 8000  # bytes that git searches for a NUL to tell binary files


@dataclass(frozen=True)
class Reading:
    """How documents are found in tables, and in files of text."""

    text_key: str = TEXT_KEY
    separator: Separator | None = None


class Document(NamedTuple):
    where: str
    words: str


class TextFiles:
    """Files of text, JSON lines or Parquet."""

    usage = "files:GLOB"

    def __init__(self, pattern: str, reading: Reading):
        self.paths, self._reading = self.find(pattern), reading
        self._doubtful: list[Path] = []  # of _LOOK_LIKE_TABLES, read as text so far

    def find(self, pattern: str) -> tuple[Path, ...]:
        return glob_paths(pattern)

    def size_hint(self) -> int | None:
        if any(path.suffix.lower() in (*COMPRESSIONS, ".parquet") for path in self.paths):
            return None
        return sum(path.stat().st_size for path in self.paths if path.exists())  # one may vanish meanwhile

    def has_tables(self) -> bool:
        return any(map(_is_table, self.paths))

    def has_texts(self) -> bool:
        return not all(map(_is_table, self.paths))

    def read(self, skips: Skips) -> Iterator[Document]:
        for path in self.paths:
            if _is_table(path):
                yield from _texts(file_table(path, skips, self._reading.text_key), self._reading.text_key, skips)
            else:
                if suffix_of(path) in _LOOK_LIKE_TABLES:
                    self._doubtful.append(path)
                yield from _read_documents(path, skips, self._reading.separator)

    def notes(self) -> list[str]:
        """For the report: one line if files that may be meant as tables were read as text, otherwise none."""
        if not self._doubtful:
            return []
        found = f"{len(self._doubtful)} files of {', '.join(_LOOK_LIKE_TABLES)}"
        return [
            f"read as text, with all marks and names: {found}, the first "
            f"{self._doubtful[0]}; write them as JSON lines (.jsonl) if they are tables"
        ]


class StandardLibrary(TextFiles):
    """The modules of the running interpreter's standard library."""

    usage = "python-stdlib"

    def find(self, pattern: str) -> tuple[Path, ...]:
        return stdlib_paths()


class HubTexts:
    """A column of a data set of the Hugging Face hub."""

    usage = "hub:NAME[:CONFIG[:SPLIT]]"

    def __init__(self, spec: str, reading: Reading):
        self._stream, self._reading = HubStream(spec, can_go_on=True), reading

    def size_hint(self) -> None:
        return None

    def has_tables(self) -> bool:
        return True

    def has_texts(self) -> bool:
        return False

    def read(self, skips: Skips) -> Iterator[Document]:
        return _texts(self._stream.table(), self._reading.text_key, skips)

    def place(self) -> Place:
        return self._stream.place()

    def resume(self, place: Place) -> None:
        self._stream.resume(place)


@runtime_checkable
class Resumable(Protocol):
    """A source that can begin again behind a document. Others are read again from their beginning."""

    def place(self) -> Place:
        """The place behind the document that `read` yielded last."""

    def resume(self, place: Place) -> None:
        """Lets `read` begin at a place of an earlier run."""


class Documents(Sources[Document]):
    kinds = (StandardLibrary, TextFiles, HubTexts)

    def __init__(self, specs: Sequence[str], reading: Reading = Reading()):
        super().__init__(specs, reading)
        self._separator, self._is_resumed = reading.separator, False
        self._start: Place = {"source": 0, "within": None}
        self._at: int | None = None  # the source that is read; None before the first

    def read(self, skips: Skips) -> Iterator[Document]:
        for number in range(self._start["source"], len(self.sources)):
            self._at = number
            yield from without_faults(self.sources[number].read(skips), self.fault, skips)
        self._at = len(self.sources)

    @property
    def is_resumable(self) -> bool:
        """Whether `place` is known in some of the sources."""
        return any(isinstance(source, Resumable) for source in self.sources)

    def place(self) -> Place | None:
        """The place behind the document that `read` yielded last; None if its source is not Resumable."""
        if self._at is None:
            return self._start
        if self._at == len(self.sources):
            return {"source": self._at, "within": None}
        source = self.sources[self._at]
        return {"source": self._at, "within": source.place()} if isinstance(source, Resumable) else None

    def resume(self, place: Place) -> None:
        """Lets `read` begin at a place of an earlier run."""
        self._start, self._is_resumed = place, True
        if place["within"] is not None:
            self.sources[place["source"]].resume(place["within"])

    def size_hint(self) -> int | None:
        """Bytes of text to expect, for the progress bar; None if only reading would tell."""
        sizes = [source.size_hint() for source in self.sources]
        return None if None in sizes else sum(sizes)

    def notes(self) -> list[str]:
        """Lines for the report, after `read`. A continued run does not know which lines its first part had."""
        of_lines = self._separator.notes() if self._separator and not self._is_resumed else []
        return [*of_lines, *(note for source in self.sources if hasattr(source, "notes") for note in source.notes())]

    def has_tables(self) -> bool:
        """Whether some documents may be cells of tables. A kind from outside that does not say it may have them."""
        return any(source.has_tables() if hasattr(source, "has_tables") else True for source in self.sources)

    def has_texts(self) -> bool:
        """Whether some documents may be of files of text. A kind from outside that does not say it may have them."""
        return any(source.has_texts() if hasattr(source, "has_texts") else True for source in self.sources)

    def fault(self, item: Document) -> tuple[str, str] | None:
        if not item.words.strip():
            return "empty", "an empty document"
        return None if is_utf8(item.words) else ("bad_encoding", "bytes that are not UTF-8, or a lone surrogate")


def _is_table(path: Path) -> bool:
    return format_of(path) in _TABLES


def _texts(table: Table, key: str, skips: Skips) -> Iterator[Document]:
    for where, row in table.rows:
        table.check(row, (key,), option="text-key")
        text = row.get(key)
        if isinstance(text, str):
            yield Document(where, text)
        else:
            skips.add("broken_line", where, f"no text under {key!r} (see --text-key)")


def _read_documents(path: Path, skips: Skips, separator: Separator | None) -> Iterator[Document]:
    """The documents of one file of text, of any suffix and also compressed.

    A line that `separator` matches as a whole ends a document and belongs to none. Without a separator of the user it
    is `<|endoftext|>` in a .txt file, so that one file can carry a whole library.
    """
    suffix = suffix_of(path)
    with counting_breaks(path, skips):
        if suffix not in _DECLARED_TEXT and _is_binary(path):
            skips.add(BINARY, str(path), "a binary file")
            return
        separator = separator or (Separator(_END_OF_DOCUMENT, keeps_empty=True) if suffix == ".txt" else None)
        with open_decompressed(path) as file:
            for where, raw in _separated(file, path, separator) if separator else [(str(path), file.read())]:
                try:
                    yield Document(where, raw.decode("utf-8"))
                except UnicodeDecodeError as error:
                    skips.add("bad_encoding", where, f"not UTF-8: {error.reason} at byte {error.start}")


def _is_binary(path: Path) -> bool:
    with open_decompressed(path) as file:
        return b"\0" in file.read(_LOOKED_AT)


def _separated(file: BinaryIO, path: Path, separator: Separator) -> Iterator[tuple[str, bytes]]:
    lines: list[bytes] = []
    start = 1
    for number, line in enumerate(file, start=1):
        if separator.ends_document(line):
            # Separators of the user may follow each other, blank lines for instance: no document is between them.
            if lines or separator.keeps_empty:
                yield f"{path}:{start}", b"".join(lines)
            lines, start = [], number + 1
        else:
            lines.append(line)
    if lines or start == 1:
        yield f"{path}:{start}", b"".join(lines)
