"""A prepared data set on disk: a manifest, and one memory-mapped file for each column of each split.

Layout: `manifest.json`, `train/NAME.bin`, `valid/NAME.bin`, ... A column is raw little-endian numbers of one dtype,
`width` of them an entry; columns of one split may differ in entries (the tokens of all rows, the end of each row). A
data set exists only when its manifest exists.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from comera_dist.data.shards import MANIFEST, check_content, manifest_fingerprint, other_kind
from comera_dist.errors import DataError

FORMAT = 1
KINDS = {"pairs": "data_prep/prepare_pairs.py", "clicks": "data_prep/prepare_clicks.py"}


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
        self._command = KINDS[kind]
        self.manifest = self._read_manifest(kind)
        self.fingerprint = manifest_fingerprint(self.manifest)
        try:
            self.splits = {
                split: {name: self._map(split, name, entry) for name, entry in columns.items()}
                for split, columns in self.manifest["splits"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise self._undescribed() from error

    def split(self, name: str) -> dict[str, np.ndarray]:
        if name not in self.splits:
            raise DataError(f"Data set {self.path} has no split {name!r}; it has {', '.join(self.splits)}.")
        return self.splits[name]

    def verify(self) -> None:
        """Compares the sha256 of every file with the manifest; DataError names the file that differs."""
        columns = {
            f"{split}/{name}.bin": entry["sha256"]
            for split, entries in self.manifest["splits"].items()
            for name, entry in entries.items()
        }
        # An earlier version listed no further files.
        for name, sha256 in {**columns, **self.manifest.get("files", {})}.items():
            check_content(self.path / name, sha256, self._rebuild)

    def _read_manifest(self, kind: str) -> dict:
        file = self.path / MANIFEST
        try:
            manifest = json.loads(file.read_bytes())
        except OSError as error:
            raise DataError(
                f"There is no data set at {self.path} ({MANIFEST}: {error.strerror}); make one with "
                f"`python {self._command} ... --output {self.path}`."
            ) from error
        except ValueError as error:
            raise DataError(f"{file} is not JSON ({error}); {self._rebuild}.") from error
        if not isinstance(manifest, dict):
            raise self._undescribed()
        found = manifest.get("kind", "text")  # tokenized text has a manifest of its own format
        if found != kind:
            raise other_kind(self.path, found, kind, self._command)
        if manifest.get("format") != FORMAT:
            raise DataError(f"{file} has format {manifest.get('format')}, expected {FORMAT}; {self._rebuild}.")
        return manifest

    def _map(self, split: str, name: str, entry: dict) -> np.ndarray:
        path, column = self.path / split / f"{name}.bin", Column(entry["dtype"], entry["width"])
        expected = entry["entries"] * column.bytes_an_entry
        found = path.stat().st_size if path.is_file() else 0
        if found != expected:
            raise DataError(f"{path} has {found} bytes, the manifest says {expected}; {self._rebuild}.")
        if not expected:
            return np.empty((0, column.width)[: 1 + (column.width > 1)], dtype=column.dtype)
        flat = np.memmap(path, dtype=column.dtype, mode="r")
        return flat.reshape(-1, column.width) if column.width > 1 else flat

    def _undescribed(self) -> DataError:
        return DataError(f"{self.path / MANIFEST} does not describe columns; {self._rebuild}.")

    @property
    def _rebuild(self) -> str:
        return f"copy the data set again, or rebuild it with {self._command} --overwrite"
