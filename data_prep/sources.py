"""Where documents come from: `python-stdlib`, `files:GLOB` or `hub:NAME[:CONFIG[:SPLIT]]`."""

import glob
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from comera_dist.errors import DataError
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

    def size_hint(self) -> int | None:
        """Bytes of text to expect, for the progress bar; None where only reading would tell."""
        if self.hub or any(path.suffix in (*formats.COMPRESSIONS, ".parquet") for path in self.paths):
            return None
        return sum(path.stat().st_size for path in self.paths)

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
            yield from formats.read_documents(path, self.text_key, skips)


def parse_source(spec: str, text_key: str = "text") -> Source:
    """DataError when `spec` is none of the three kinds, or names missing files or unknown formats."""
    kind, _, rest = spec.partition(":")
    if spec == "python-stdlib":
        return Source(paths=stdlib_paths(), text_key=text_key)
    if kind == "files" and rest:
        return Source(paths=glob_paths(rest, formats.format_of), text_key=text_key)
    if kind == "hub" and rest:
        return Source(hub=parse_hub(rest), text_key=text_key)
    raise DataError(f"Source {spec!r} is unknown; use python-stdlib, files:GLOB or hub:NAME[:CONFIG[:SPLIT]].")


def stdlib_paths() -> tuple[Path, ...]:
    return module_paths(Path(sysconfig.get_path("stdlib")))


def module_paths(root: Path) -> tuple[Path, ...]:
    """Python files below `root` that are neither tests nor another package's installation."""
    paths = (path for path in root.rglob("*.py") if path.is_file())
    return tuple(sorted(path for path in paths if not _NOT_STDLIB & set(path.relative_to(root).parts)))


def glob_paths(pattern: str, check: Callable[[Path], object]) -> tuple[Path, ...]:
    """Files that match, sorted; DataError when there are none, and what `check` raises for one of them."""
    names = glob.glob(str(Path(pattern).expanduser()), recursive=True)
    paths = tuple(sorted(path for path in map(Path, names) if path.is_file()))
    if not paths:
        raise DataError(f"No file matches files:{pattern}; check the pattern (quote it, and use ** for subfolders).")
    for path in paths:
        check(path)
    return paths


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
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"Data set {name} cannot be read ({_first_line(error)}); check its name, configuration, split "
            "and your network, then run the same command again."
        ) from error


def _column(row: dict, text_key: str, name: str):
    if text_key not in row:
        raise DataError(f"Data set {name} has no column {text_key!r}; name one of {', '.join(row)} with --text-key.")
    return row[text_key]


def _class_name(number: int | None, names: list[str]) -> str | None:
    return names[number] if number in range(len(names)) else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
