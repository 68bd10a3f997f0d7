"""Writes prepared data as columns: one file for each column of each split, and a manifest of their hashes."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from comera_dist.data.columns import Column, ColumnSet
from comera_dist.data.manifest import FORMAT
from data_prep.files.output_folder import OutputFolder, sync


class ColumnFolder(OutputFolder):
    """Writes one data set of a `kind` that comera_dist.data.columns knows."""

    def __init__(self, output: Path, kind: str, columns: dict[str, Column], splits: list[str], parameters: dict):
        super().__init__(output, parameters)
        self._kind, self._columns, self._splits = kind, columns, splits
        self._entries = {split: dict.fromkeys(columns, 0) for split in splits}
        self._digests = {split: {name: hashlib.sha256() for name in columns} for split in splits}

    def is_finished(self) -> bool:
        """True if the data set is there with these parameters; DataError if it is another one, or damaged."""
        is_there = self.is_published(kind=self._kind)
        if is_there:
            ColumnSet(self.output, self._kind)
        return is_there

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Claims the folder and opens the files that `append` fills; an interrupted run leaves none of them."""
        with self.claimed(), ExitStack() as files:
            files.callback(self.discard)
            self.discard()
            self._files = {split: self._open(split, files) for split in self._splits}
            yield

    def append(self, split: str, arrays: dict[str, np.ndarray]) -> None:
        """Adds entries to columns of a split: (entries,) or (entries, width)."""
        for name, array in arrays.items():
            column = self._columns[name]
            content = np.ascontiguousarray(array, dtype=column.dtype).tobytes()
            self._files[split][name].write(content)
            self._digests[split][name].update(content)
            self._entries[split][name] += len(content) // column.bytes_an_entry

    def publish(self, facts: dict, files: dict[str, bytes] | None = None) -> dict:
        """Publishes the columns and further `files`; returns the manifest, of which `facts` are a part."""
        files = files or {}
        manifest = {
            "format": FORMAT,
            "kind": self._kind,
            "parameters": self.parameters,
            **facts,
            "splits": {split: self._describe(split) for split in self._splits},
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        for columns in self._files.values():
            for file in columns.values():
                sync(file)
        super().publish(manifest, files)
        return manifest

    def _describe(self, split: str) -> dict:
        return {
            name: {
                "dtype": column.dtype,
                "width": column.width,
                "entries": self._entries[split][name],
                "sha256": self._digests[split][name].hexdigest(),
            }
            for name, column in self._columns.items()
        }

    def _open(self, split: str, files: ExitStack) -> dict:
        folder = self.partial / split
        folder.mkdir(parents=True)
        return {name: files.enter_context(open(folder / f"{name}.bin", "wb")) for name in self._columns}
