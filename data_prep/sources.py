"""Where documents come from: `python-stdlib`, `files:GLOB` or `hub:NAME[:CONFIG[:SPLIT]]`."""

import glob
import itertools
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from comera_dist.errors import DataError, first_line
from data_prep import formats
from data_prep.skips import Skips

# Tests repeat the code that they test and odd byte patterns; site-packages differ from machine to machine.
_NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Source:
    """A named stream of documents, always in the same order. Built by `parse_source`."""

    paths: tuple[Path, ...] = ()
    hub: tuple[str, str | None, str] | None = None  # name, configuration, split
    text_key: str = "text"
    separator: re.Pattern | None = None  # of the lines that end a document of a text file

    def size_hint(self) -> int | None:
        """Bytes of text to expect, for the progress bar; None where only reading would tell."""
        if self.hub or any(path.suffix.lower() in (*formats.COMPRESSIONS, ".parquet") for path in self.paths):
            return None
        return sum(path.stat().st_size for path in self.paths if path.exists())  # one may vanish meanwhile

    def documents(self, skips: Skips) -> Iterator[str]:
        """Texts that hold more than white space and fit UTF-8; all others are counted in `skips`."""
        for where, text in self._read(skips):
            if not text.strip():
                skips.add("empty", where, "an empty document")
            elif has_lone_surrogate(text):
                skips.add("bad_encoding", where, "a lone surrogate, which UTF-8 cannot hold")
            else:
                yield text

    def _read(self, skips: Skips) -> Iterator[tuple[str, str]]:
        if self.hub:
            yield from _hub_documents(*self.hub, self.text_key, skips)
        for path in self.paths:
            yield from formats.read_documents(path, self.text_key, skips, self.separator)


@dataclass(frozen=True)
class Sources:
    """Several sources, read one after another. Built by `parse_sources`."""

    sources: tuple[Source, ...]

    def size_hint(self) -> int | None:
        sizes = [source.size_hint() for source in self.sources]
        return None if None in sizes else sum(sizes)

    def documents(self, skips: Skips) -> Iterator[str]:
        for source in self.sources:
            yield from source.documents(skips)


def parse_sources(specs: list[str], text_key: str = "text", separator: re.Pattern | None = None) -> Sources:
    """DataError where one is named twice, or parse_source refuses it. A file that several name is read once."""
    twice = [spec for number, spec in enumerate(specs) if spec in specs[:number]]
    if twice:
        raise DataError(f"Source {twice[0]!r} is named twice; name it once, its documents would count double.")
    seen, sources = set(), [parse_source(spec, text_key, separator) for spec in specs]
    return Sources(tuple(replace(source, paths=_unseen(source.paths, seen)) for source in sources))


def _unseen(paths: tuple[Path, ...], seen: set[str]) -> tuple[Path, ...]:
    """Those whose file is not yet in `seen`, to which they are added."""
    kept = []
    for path in paths:
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            kept.append(path)
    return tuple(kept)


def parse_source(spec: str, text_key: str = "text", separator: re.Pattern | None = None) -> Source:
    """DataError when `spec` is none of the three kinds, or names missing files."""
    kind, _, rest = spec.partition(":")
    if spec == "python-stdlib":
        return Source(paths=stdlib_paths(), text_key=text_key, separator=separator)
    if kind == "files" and rest:
        return Source(paths=glob_paths(rest), text_key=text_key, separator=separator)
    if kind == "hub" and rest:
        return Source(hub=parse_hub(rest), text_key=text_key)
    raise DataError(f"Source {spec!r} is unknown; use python-stdlib, files:GLOB or hub:NAME[:CONFIG[:SPLIT]].")


def stdlib_paths() -> tuple[Path, ...]:
    return module_paths(Path(sysconfig.get_path("stdlib")))


def module_paths(root: Path) -> tuple[Path, ...]:
    """Python files below `root` that are neither tests nor another package's installation."""
    paths = (path for path in root.rglob("*.py") if path.is_file())
    return tuple(sorted(path for path in paths if not _NOT_STDLIB & set(path.relative_to(root).parts)))


def glob_paths(pattern: str, check: Callable[[Path], object] = str) -> tuple[Path, ...]:
    """Files that match, sorted; DataError when there are none, and what `check` raises for one of them."""
    try:
        names = set(_expand(Path(pattern).expanduser().parts))
    except (RuntimeError, ValueError) as error:  # the home of an unknown user, a NUL
        raise DataError(f"files:{pattern} is no pattern of files ({error}); name some with *, ? or **.") from error
    paths = tuple(sorted(path for path in map(Path, names) if path.is_file()))
    if not paths:
        raise DataError(f"No file matches files:{pattern}; check the pattern (quote it, and use ** for subfolders).")
    for path in paths:
        check(path)
    return paths


def _expand(parts: tuple[str, ...]) -> Iterator[str]:
    """What matches, as glob has it, but below `**` each folder once: a link may lead back to a folder above it."""
    if "**" not in parts:
        yield from glob.glob(os.path.join(".", *parts))
        return
    deep = parts.index("**")
    rest = tuple(itertools.dropwhile(lambda part: part == "**", parts[deep:])) or ("*",)
    for start in glob.glob(os.path.join(".", *parts[:deep])):
        for folder in _folders(start):
            yield from _expand((glob.escape(folder), *rest))


def _folders(start: str) -> Iterator[str]:
    """`start` and all folders below it but hidden ones; OSError for one that cannot be read."""
    seen = set()
    for folder, names, _ in os.walk(start, onerror=_raise, followlinks=True):
        real = os.path.realpath(folder)
        names[:] = [] if real in seen else sorted(name for name in names if not name.startswith("."))
        if real not in seen:
            yield folder
        seen.add(real)


def _raise(error: OSError):
    raise error


def parse_hub(rest: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of NAME[:CONFIG[:SPLIT]]."""
    name, config, split = [*rest.split(":"), "", ""][:3]
    return name, config or None, split or "train"


def _hub_documents(name: str, config: str | None, split: str, text_key: str, skips: Skips) -> Iterator[tuple[str, str]]:
    for where, row in hub_rows(name, config, split):
        text = _column(row, text_key, name)
        if isinstance(text, str):
            yield where, text
        else:
            skips.add("broken_line", where, f"the column {text_key!r} holds no text")


def hub_rows(name: str, config: str | None, split: str) -> Iterator[tuple[str, dict]]:
    """(where, row) of a streamed data set; where a column holds numbers of named classes, its names (None: no class).

    DataError when it cannot be read.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
        features = (rows.features or {}).items()
        classes = {column: feature.names for column, feature in features if isinstance(feature, datasets.ClassLabel)}
        for number, row in enumerate(rows):
            named = {column: _class_name(row.get(column), names) for column, names in classes.items()}
            yield f"{name}: row {number}", {**row, **named}
    except Exception as error:  # whatever the readers, parsers and file systems below `datasets` raise
        raise DataError(
            f"Data set {name} cannot be read ({first_line(error).rstrip('.')}); check its name, configuration, split "
            "and your network, then run the same command again."
        ) from error


def _column(row: dict, text_key: str, name: str):
    if text_key not in row:
        raise DataError(f"Data set {name} has no column {text_key!r}; name one of {', '.join(row)} with --text-key.")
    return row[text_key]


def _class_name(number: int | None, names: list[str]) -> str | None:
    return names[number] if number in range(len(names)) else None


def has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
