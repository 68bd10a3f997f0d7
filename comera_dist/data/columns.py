"""A data set of columns on disk: a manifest, and one memory-mapped file for each column of each split.

Layout: `manifest.json`, `train/NAME.bin`, `valid/NAME.bin`, ... A column is raw little-endian numbers of one dtype,
`width` of them an entry. Columns of one split may differ in entries, e.g. the tokens of all rows and the end of each
row.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.contents import Contents
from comera_dist.data.manifest import MANIFEST, ColumnRecord, ColumnsManifest, shortened
from comera_dist.data.prepared import Kind, PreparedData
from comera_dist.errors import DataError

KINDS = {
    "pairs": Kind(
        "pairs",
        "data_prep/prepare_pairs.py",
        dtypes={"tokens": ("<u2", "<u4"), "first_end": ("<i8",), "second_end": ("<i8",), "labels": ("<i2",)},
    ),
    "answers": Kind(
        "answers",
        "data_prep/prepare_answers.py",
        dtypes={"tokens": ("<u2", "<u4"), "prompt_end": ("<i8",), "answer_end": ("<i8",)},
    ),
    "clicks": Kind(
        "clicks",
        "data_prep/prepare_clicks.py",
        dtypes={"dense": ("<f4",), "categories": ("<i4",), "labels": ("|i1",)},
        wide=("dense", "categories"),
    ),
}
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Column:
    """`dtype` as numpy spells it, e.g. "<i4". An entry is `width` numbers."""

    dtype: str
    width: int = 1

    @property
    def bytes_an_entry(self) -> int:
        return np.dtype(self.dtype).itemsize * self.width


class ColumnSet(PreparedData[Columns]):
    """An opened data set of one kind. `splits` holds arrays (entries,) or (entries, width) by split and column.

    Raises DataError also if a file is missing or has not its full size.
    """

    def __init__(self, path: str | Path, kind: str):
        super().__init__(path, KINDS[kind])
        record = self._described_by(ColumnsManifest)
        files = {self.path / name: sha256 for name, sha256 in record.files.items()}
        for split, columns in record.splits.items():
            files |= {self._file(split, name): column.sha256 for name, column in columns.items()}
        self.contents = Contents(files, self._remedy)
        self._sizes: dict[str, dict[Path, int]] = {split: {} for split in record.splits}
        self.splits = {
            split: {name: self._open(split, name, column) for name, column in columns.items()}
            for split, columns in record.splits.items()
        }

    def check_sizes(self, split: str) -> None:
        """Raises DataError if a file of `split` was cut after it was opened: reading its map would end in SIGBUS.

        Call it before each batch. A cut between this check and the reading is not noticed: a batch gathers rows from
        all over a file, and reading each row by a system call took six times as long.
        """
        for file, size in self._sizes[split].items():
            self.contents.check_size(file, size)

    def check_below(self, what: str, largest: int, bound: int) -> None:
        """Raises DataError if `largest`, a token or a label of a row, reaches the manifest's `bound`."""
        if largest >= bound:
            raise DataError(f"{self.path} holds {what} {largest} and its {MANIFEST} knows {bound}; {self._remedy}")

    def _check_complete(self, split: str) -> None:
        """Raises DataError if `split` lacks a column of this kind of data."""
        if missing := [name for name in self._kind.dtypes if name not in self.splits[split]]:
            raise self._misdescribed(f"splits.{split}.{missing[0]} is missing")

    def _open(self, split: str, name: str, record: ColumnRecord) -> NDArray[Any]:
        self._check_type(split, name, record)
        file, column = self._file(split, name), Column(record.dtype, record.width)
        self._sizes[split][file] = record.entries * column.bytes_an_entry
        self.contents.check_size(file, self._sizes[split][file])
        shape = (record.entries, column.width) if column.width > 1 else (record.entries,)
        if not record.entries:  # an empty file cannot be mapped
            return np.empty(shape, dtype=column.dtype)
        try:
            return np.memmap(file, dtype=column.dtype, mode="r", shape=shape)
        except (OSError, ValueError) as error:  # ValueError: the file was cut a moment ago
            raise DataError(f"{file} cannot be mapped ({error}); make it readable, or {self._remedy}") from error

    def _check_type(self, split: str, name: str, record: ColumnRecord) -> None:
        allowed = self._kind.dtypes.get(name)
        if allowed is None:
            raise self._misdescribed(f"column {split}.{name} is unknown, expected {', '.join(self._kind.dtypes)}")
        if record.dtype not in allowed:
            place = f"splits.{split}.{name}.dtype"
            raise self._misdescribed(f"{place} is {shortened(record.dtype)}, expected one of {', '.join(allowed)}")
        if record.width > 1 and name not in self._kind.wide:
            raise self._misdescribed(f"splits.{split}.{name}.width is {record.width}, expected 1")

    def _file(self, split: str, name: str) -> Path:
        return self.path / split / f"{name}.bin"
