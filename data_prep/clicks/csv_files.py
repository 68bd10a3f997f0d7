"""Click logs in CSV files, whose columns the user names."""

from pathlib import Path

from comera_dist.errors import DataError
from data_prep.clicks.columns import LabelRule, is_available
from data_prep.clicks.records import Layout
from data_prep.clicks.text_kind import TextKind
from data_prep.files.blocks import TextTable
from data_prep.files.finding import glob_paths


class CsvClicks(TextKind):
    usage = "csv:GLOB"
    names_columns = True

    @classmethod
    def layout(cls, pattern: str, settings: dict, block_bytes: int) -> Layout:
        if not settings["label"]:
            raise DataError("A csv source needs --label, the column that says which rows were clicked.")
        reading = {"missing": ("", *settings["missing"]), "block_bytes": block_bytes}

        def table(path: Path) -> TextTable:
            names = settings["columns"]
            return TextTable(path, names, **reading) if names else TextTable.with_header(path, **reading)

        layout = Layout(
            tuple(map(table, glob_paths(pattern))),
            LabelRule.parse(settings["label"]),
            settings["dense"],
            settings["categories"],
            joined=_joined(settings["join"], reading) if settings["join"] else None,
        )
        _check_names(layout)
        return layout


def _joined(spec: str, reading: dict) -> tuple[TextTable, str]:
    name, _, key = spec.rpartition(":")
    if not name:
        raise DataError(f"--join {spec} names no key; write FILE:COLUMN with a column that both files have.")
    return TextTable.with_header(glob_paths(name)[0], remedy="write a row of names above it", **reading), key


def _check_names(layout: Layout) -> None:
    features, label = (*layout.dense, *layout.categories), layout.label.column
    if not layout.categories:
        raise DataError("A model of clicks needs at least one categorical feature; name some with --categories.")
    for name in features:
        if features.count(name) > 1 or name == label:
            raise DataError(f"Column {name} is used twice; name each once in --label, --dense and --categories.")
    for table in layout.tables:
        present = set(table.names) | (set(layout.joined[0].names) if layout.joined else set())
        for name in (label, *features):
            if name not in present and (name == label or not is_available(name, present)):
                raise DataError(f"{table.path} has no column {name!r}; name some of {', '.join(sorted(present))}.")
        if layout.joined:
            _check_join(table, *layout.joined)


def _check_join(table: TextTable, other: TextTable, key: str) -> None:
    common = set(table.names) & set(other.names)
    if common != {key}:
        raise DataError(
            f"{table.path} and {other.path} have in common the columns {', '.join(sorted(common)) or 'none'}, and "
            f"--join needs it to be {key!r} alone; rename the others in one of the files, or join by another column."
        )
