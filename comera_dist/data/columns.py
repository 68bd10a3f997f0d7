"""A prepared data set on disk: a manifest, and one memory-mapped file for each column of each split.

Layout: `manifest.json`, `train/NAME.bin`, `valid/NAME.bin`, ... A column is raw little-endian numbers of one dtype,
`width` of them an entry; columns of one split may differ in entries (the tokens of all rows, the end of each row). A
data set exists only when its manifest exists.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.contents import Contents
from comera_dist.data.manifest import Fields, ManifestError, read_json
from comera_dist.data.shards import MANIFEST, manifest_fingerprint, other_kind
from comera_dist.errors import DataError

FORMAT = 1
MOST_IDS = 2**32  # that a column of four bytes can tell apart
_MOST_WIDE = 2**20  # numbers of an entry


@dataclass(frozen=True)
class Kind:
    """What a data set may hold: the dtypes of each column, and the columns whose entries may be several numbers.

    Nothing else is read: numpy would take bytes of a file for pointers where a manifest said "|O".
    """

    command: str
    dtypes: dict[str, tuple[str, ...]]
    wide: tuple[str, ...] = ()


KINDS = {
    "pairs": Kind(
        "data_prep/prepare_pairs.py",
        {"tokens": ("<u2", "<u4"), "first_end": ("<i8",), "second_end": ("<i8",), "labels": ("<i2",)},
    ),
    "clicks": Kind(
        "data_prep/prepare_clicks.py",
        {"dense": ("<f4",), "categories": ("<i4",), "labels": ("|i1",)},
        wide=("dense", "categories"),
    ),
}


@dataclass(frozen=True)
class Column:
    """`dtype` as numpy spells it, e.g. "<i4"; an entry is `width` numbers."""

    dtype: str
    width: int = 1

    @property
    def bytes_an_entry(self) -> int:
        return np.dtype(self.dtype).itemsize * self.width


class ColumnSet:
    """An opened data set of one kind: `splits` holds arrays (entries,) or (entries, width) by split and column.

    DataError, naming the remedy, when it is missing, of another kind, or cut short.
    """

    def __init__(self, path: str | Path, kind: str):
        self.path = Path(path)
        self._kind, self._name = KINDS[kind], kind
        self._sizes: dict[str, dict[Path, int]] = {}
        try:
            self.manifest = self._read_manifest()
            self.fields, self.fingerprint = Fields(self.manifest), manifest_fingerprint(self.manifest)
            self.fields.whole("format", FORMAT, FORMAT)
            self.contents = Contents(self._hashes(), self._rebuild)
            splits = self.fields.fields("splits")
            self.splits = {split: self._open(split, splits.fields(split)) for split in splits.named()}
        except ManifestError as error:
            raise self.undescribed(error) from error

    def split(self, name: str) -> dict[str, np.ndarray]:
        if name not in self.splits:
            raise DataError(f"Data set {self.path} has no split {name!r}; it has {', '.join(self.splits)}.")
        return self.splits[name]

    def check_sizes(self, split: str) -> None:
        """DataError where a file of `split` was cut after it was opened: to read its map would end in SIGBUS.

        To be called before each batch. A cut between this look at the sizes and the reading is not noticed: a batch
        gathers rows from all over a file, and a system call for each took six times as long.
        """
        for file, size in self._sizes[split].items():
            self.contents.check_size(file, size)

    def verify(self) -> None:
        """Compares the sha256 of every file with the manifest; DataError names the file that differs."""
        self.contents.verify()

    def undescribed(self, error: ManifestError) -> DataError:
        return DataError(f"{self.path / MANIFEST} does not describe columns of {self._name}: {error}; {self._rebuild}.")

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = read_json(self.path / MANIFEST)
        except OSError as error:
            raise DataError(
                f"There is no data set at {self.path} ({MANIFEST}: {error.strerror}); make one with "
                f"`python {self._kind.command} ... --output {self.path}`."
            ) from error
        # Tokenized text has a manifest of its own format.
        found = manifest.get("kind", "text") if isinstance(manifest, dict) else self._name
        if found != self._name:
            raise other_kind(self.path, found, self._name, self._kind.command)
        return manifest

    def _hashes(self) -> dict[Path, str]:
        splits = self.fields.fields("splits")
        hashes: dict[Path, str] = {}
        for split in splits.named():
            columns = splits.fields(split)
            hashes |= {self._file(split, name): columns.fields(name).sha256("sha256") for name in columns.named()}
        if "files" in self.manifest:  # an earlier version listed no further files
            files = self.fields.fields("files")
            hashes |= {self.path / name: files.sha256(name) for name in files.named()}
        return hashes

    def _open(self, split: str, columns: Fields) -> dict[str, np.ndarray]:
        self._sizes[split] = {}
        return {name: self._map(split, name, columns.fields(name)) for name in columns.named()}

    def _map(self, split: str, name: str, entry: Fields) -> np.ndarray:
        if name not in self._kind.dtypes:
            raise ManifestError(f"column {split}.{name} is unknown, expected {', '.join(self._kind.dtypes)}")
        widest = _MOST_WIDE if name in self._kind.wide else 1
        column = Column(entry.one_of("dtype", self._kind.dtypes[name]), entry.whole("width", 1, widest))
        file, entries = self._file(split, name), entry.whole("entries")
        self._sizes[split][file] = entries * column.bytes_an_entry
        self.contents.check_size(file, self._sizes[split][file])
        shape = (entries, column.width) if column.width > 1 else (entries,)
        return _map_file(file, column.dtype, shape) if entries else np.empty(shape, dtype=column.dtype)

    def _file(self, split: str, name: str) -> Path:
        return self.path / split / f"{name}.bin"

    @property
    def _rebuild(self) -> str:
        return f"copy the data set again, or rebuild it with {self._kind.command} --overwrite"


def _map_file(file: Path, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    try:
        return np.memmap(file, dtype=dtype, mode="r", shape=shape)
    except (OSError, ValueError) as error:  # ValueError: the file was cut a moment ago
        raise DataError(f"{file} cannot be mapped ({error}); make it readable, or copy the data set again.") from error
