"""Writes prepared data as columns: one file for each column of each split, and a manifest with their hashes."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.columns import Column, ColumnSet
from comera_dist.data.manifest import FORMAT
from data_prep.files.output_folder import OutputFolder, sync


class _ColumnFile:
    """A column that is being written."""

    def __init__(self, column: Column, file: BinaryIO):
        self._column, self._file, self._digest, self._bytes = column, file, hashlib.sha256(), 0

    def append(self, array: NDArray[Any]) -> None:
        content = np.ascontiguousarray(array, dtype=self._column.dtype).tobytes()
        self._file.write(content)
        self._digest.update(content)
        self._bytes += len(content)

    def finish(self) -> dict[str, Any]:
        """Waits until the file is on the disk. Returns its entry of the manifest."""
        sync(self._file)
        entries = self._bytes // self._column.bytes_an_entry
        return {**vars(self._column), "entries": entries, "sha256": self._digest.hexdigest()}


class ColumnFolder(OutputFolder):
    """Writes one data set of a `kind` of comera_dist.data.columns; a finished one has these `facts` in its manifest."""

    def __init__(
        self,
        output: Path,
        kind: str,
        columns: dict[str, Column],
        splits: list[str],
        parameters: dict[str, Any],
        **facts: object,
    ):
        super().__init__(output, parameters)
        self._kind, self._columns, self._splits, self._facts = kind, columns, splits, facts

    def is_finished(self) -> bool:
        """True if the data set exists with these parameters. Raises DataError if it is another one, or damaged."""
        if not self.is_published(kind=self._kind, **self._facts):
            return False
        ColumnSet(self.output, self._kind)
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Claims the folder and opens the files that `append` fills. An interrupted run leaves none of them."""
        with self.claimed(), ExitStack() as files:
            files.callback(self.abandon)
            self.discard()
            self._files = {split: self._open(split, files) for split in self._splits}
            yield

    def append(self, split: str, arrays: dict[str, NDArray[Any]]) -> None:
        """Adds entries, (entries,) or (entries, width), to columns of a split."""
        for name, array in arrays.items():
            self._files[split][name].append(array)

    def publish(self, facts: dict[str, Any], files: dict[str, bytes] | None = None) -> dict[str, Any]:
        """Publishes the columns, further `files`, and the manifest, which it returns. `facts` are a part of it."""
        files, splits = files or {}, self._files.items()
        manifest = {
            "format": FORMAT,
            "kind": self._kind,
            "parameters": self.parameters,
            **facts,
            "splits": {split: {name: file.finish() for name, file in columns.items()} for split, columns in splits},
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        self.replace_with(manifest, files)
        return manifest

    def _open(self, split: str, files: ExitStack) -> dict[str, _ColumnFile]:
        folder = self.partial / split
        folder.mkdir(parents=True)
        return {
            name: _ColumnFile(column, files.enter_context(open(folder / f"{name}.bin", "wb")))
            for name, column in self._columns.items()
        }
