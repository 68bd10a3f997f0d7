"""Click logs in files of text: Criteo's format, and CSV.

Source of Criteo's format: the readme of the Kaggle Display Advertising Challenge data, and of the Terabyte Click Logs.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from comera_dist.errors import DataError
from data_prep.clicks.columns import LabelRule, is_available
from data_prep.clicks.earlier import open_earlier
from data_prep.clicks.features import Features, NewFeatures, for_each
from data_prep.clicks.generated import CATEGORIES, DENSE
from data_prep.clicks.records import Layout, TextClicks
from data_prep.files.blocks import TextTable
from data_prep.files.finding import file_identity, glob_paths

# Settings that --dictionaries decides, with their defaults.
_OF_DICTIONARIES: dict[str, Any] = {"dense": (), "categories": (), "log": False, "hash_rows": (), "min_count": 1}


class TextKind:
    """The base of the kinds that are files of text, with a layout for each split."""

    usage: str
    reads_files = True
    names_columns = False  # the user names them
    hexadecimal = False  # words are hashes of 32 bits, and numbers are counts

    @classmethod
    def layout(cls, pattern: str, settings: dict[str, Any], block_bytes: int) -> Layout:
        """Raises DataError if no file matches, or if a file does not name its columns."""
        raise NotImplementedError

    @classmethod
    def open(cls, pattern: str, settings: dict[str, Any], block_bytes: int) -> TextClicks:
        """The log that `settings`, the arguments of the command, describe. Raises DataError like `layout`."""
        features = None
        if settings["dictionaries"]:
            _check_left_to_dictionaries(settings)
            dense, categories, features = open_earlier(Path(settings["dictionaries"]), cls.hexadecimal)
            settings = {**settings, "dense": dense, "categories": categories}
        layouts = {
            split: cls.layout(cls._pattern(spec), settings, block_bytes)
            for split in ("train", "valid", "test")
            if (spec := settings["source" if split == "train" else f"{split}_source"])
        }
        for layout in layouts.values():
            _check_names(layout)
        _check_apart(layouts)
        train = layouts.pop("train", None)
        if train is None:
            train = replace(next(iter(layouts.values())), tables=())
        elif not (train := without_files_of(train, layouts.values())).tables:
            raise DataError(f"--source {settings['source']} has only files that are held out; name others")
        return TextClicks(train, features or cls._new_features(train, settings), layouts)

    @classmethod
    def _new_features(cls, layout: Layout, settings: dict[str, Any]) -> Features | NewFeatures:
        hash_rows = for_each(settings["hash_rows"], len(layout.categories))
        log, min_count = cls.hexadecimal or settings["log"], settings["min_count"]
        new = NewFeatures.of(len(layout.dense), len(layout.categories), log, hash_rows, min_count)
        return new if new.needs_fit else new.learned()

    @classmethod
    def _pattern(cls, spec: str) -> str:
        kind, _, pattern = spec.partition(":")
        if kind != cls.usage.partition(":")[0] or not pattern:
            raise DataError(f"source {spec!r} is not {cls.usage}; name sources of one kind, or make several data sets")
        return pattern


class CriteoClicks(TextKind):
    """A label, 13 counts and 26 hashed words a row, separated by tabs, empty if missing."""

    usage = "criteo:GLOB"
    hexadecimal = True

    @classmethod
    def layout(cls, pattern: str, settings: dict[str, Any], block_bytes: int) -> Layout:
        if (settings["dense"], settings["categories"]) not in (((), ()), (DENSE, CATEGORIES)):
            folder = settings["dictionaries"]
            raise DataError(f"--dictionaries {folder} are not of Criteo's columns; name those of a criteo source")
        columns = ("label", *DENSE, *CATEGORIES)
        tables = tuple(
            TextTable(path, columns, delimiter="\t", quoted=False, block_bytes=block_bytes)
            for path in glob_paths(pattern)
        )
        return Layout(tables, LabelRule.parse("label"), DENSE, CATEGORIES, hexadecimal=True)


class CsvClicks(TextKind):
    """Columns that the user names, perhaps with the columns of a second file."""

    usage = "csv:GLOB"
    names_columns = True

    @classmethod
    def layout(cls, pattern: str, settings: dict[str, Any], block_bytes: int) -> Layout:
        names = settings["columns"]
        reading: dict[str, Any] = {"missing": ("", *settings["missing"]), "block_bytes": block_bytes}
        tables = tuple(
            TextTable(path, names, **reading) if names else TextTable.with_header(path, **reading)
            for path in glob_paths(pattern)
        )
        joined = _joined(settings["join"], reading) if settings["join"] else None
        label = LabelRule.parse(settings["label"]) if settings["label"] else None
        return Layout(tables, label, settings["dense"], settings["categories"], joined=joined)


def without_files_of(train: Layout, held: Iterable[Layout]) -> Layout:
    """The layout without the files that are held out: a pattern for all days also matches the held-out one."""
    files = {file_identity(table.path) for layout in held for table in layout.tables}
    return replace(train, tables=tuple(table for table in train.tables if file_identity(table.path) not in files))


def _check_apart(layouts: dict[str, Layout]) -> None:
    """Raises DataError if valid and test share a file, perhaps under two names."""
    valid, test = (layouts[name].tables if name in layouts else () for name in ("valid", "test"))
    of_valid = {file_identity(table.path): table.path for table in valid}
    for table in test:
        if twin := of_valid.get(file_identity(table.path)):
            raise DataError(
                f"file {twin} of --valid-source is also in --test-source, as {table.path}; give patterns that have no "
                "file in common"
            )


def _check_left_to_dictionaries(settings: dict[str, Any]) -> None:
    for key, default in _OF_DICTIONARIES.items():
        if settings[key] != default:
            option = key.replace("_", "-")
            raise DataError(f"--{option} is that of --dictionaries {settings['dictionaries']}; remove one of the two")


def _joined(spec: str, reading: dict[str, Any]) -> tuple[TextTable, str]:
    name, _, key = spec.rpartition(":")
    if not name:
        raise DataError(f"--join {spec} names no key; write FILE:COLUMN with a column that both files have")
    first, *others = glob_paths(name)
    if others:
        raise DataError(f"--join {spec} matches {1 + len(others)} files, {first} and others; name one")
    return TextTable.with_header(first, remedy="write a row of names above it", **reading), key


def _check_names(layout: Layout) -> None:
    """Raises DataError if the files do not have each named column once, or if none is named for the label."""
    if layout.label is None:
        raise DataError("a csv source needs to know which rows were clicked; name a column with --label")
    features, label = (*layout.dense, *layout.categories), layout.label.column
    if not layout.categories:
        raise DataError("a model of clicks needs at least one categorical feature; name some with --categories")
    for name in features:
        if features.count(name) > 1 or name == label:
            raise DataError(f"column {name} is used twice; name each once in --label, --dense and --categories")
    for table in layout.tables:
        present = layout.columns_of(table)
        for name in (label, *features):
            if name not in present and (name == label or not is_available(name, present)):
                raise DataError(f"{table.path} has no column {name!r}; name some of {', '.join(sorted(present))}")
        if layout.joined:
            _check_join(table, *layout.joined)


def _check_join(table: TextTable, other: TextTable, key: str) -> None:
    common = set(table.names) & set(other.names)
    if common != {key}:
        raise DataError(
            f"{table.path} and {other.path} have in common the columns {', '.join(sorted(common)) or 'none'}, and "
            f"--join needs it to be {key!r} alone; rename the others in one of the files, or join by another column"
        )
