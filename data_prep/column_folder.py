"""The output folder of a command that prepares columns: claim it, fill `.partial`, publish it as a data set."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from comera_dist.data.columns import FORMAT, Column, ColumnSet
from comera_dist.data.manifest import ManifestError, read_json
from comera_dist.data.shards import MANIFEST, PARTIAL
from comera_dist.errors import DataError
from data_prep.claim import held, names_place


class ColumnFolder:
    """Writes one data set. `parameters` is everything that decides what it will hold."""

    def __init__(self, output: Path, kind: str, columns: dict[str, Column], splits: list[str], parameters: dict):
        self.output, self._partial = output, output / PARTIAL
        self._kind, self._columns, self._splits, self._parameters = kind, columns, splits, parameters
        self._entries = {split: dict.fromkeys(columns, 0) for split in splits}
        self._digests = {split: {name: hashlib.sha256() for name in columns} for split in splits}

    def is_finished(self) -> bool:
        """Whether the data set is there with these parameters; DataError when it is another one, or damaged."""
        try:
            manifest = read_json(self.output / MANIFEST)
        except (FileNotFoundError, NotADirectoryError, ManifestError):
            return False
        if not isinstance(manifest, dict):
            return False
        if (manifest.get("kind"), manifest.get("parameters")) != (self._kind, self._parameters):
            raise DataError(
                f"{self.output} holds other data, or data prepared with other settings; pass --overwrite to replace "
                "them, or name another --output."
            )
        ColumnSet(self.output, self._kind)
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the folder for this process and opens the files that `append` fills; `.partial` is gone afterwards."""
        self.output.mkdir(parents=True, exist_ok=True)
        with held(self.output), names_place(self.output):
            self._partial.mkdir(exist_ok=True)
            with ExitStack() as files:
                files.callback(shutil.rmtree, self._partial, ignore_errors=True)
                self._files = {split: self._open(split, files) for split in self._splits}
                yield

    def append(self, split: str, arrays: dict[str, np.ndarray]) -> None:
        """Adds entries to each column of a split: (entries,) or (entries, width)."""
        for name, array in arrays.items():
            column = self._columns[name]
            content = np.ascontiguousarray(array, dtype=column.dtype).tobytes()
            self._files[split][name].write(content)
            self._digests[split][name].update(content)
            self._entries[split][name] += len(content) // column.bytes_an_entry

    def publish(self, facts: dict, files: dict[str, bytes] | None = None) -> dict:
        """Moves columns and further `files` into place, the manifest last; returns it. `facts` become part of it."""
        files = files or {}
        manifest = {
            "format": FORMAT,
            "kind": self._kind,
            "parameters": self._parameters,
            **facts,
            "splits": {split: self._describe(split) for split in self._splits},
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        (self.output / MANIFEST).unlink(missing_ok=True)
        for split in self._splits:
            for file in self._files[split].values():
                file.flush()
                os.fsync(file.fileno())
            shutil.rmtree(self.output / split, ignore_errors=True)
            os.replace(self._partial / split, self.output / split)
        contents = {**files, MANIFEST: json.dumps(manifest, indent=1).encode() + b"\n"}
        for name, content in contents.items():
            (self._partial / name).write_bytes(content)
        for name in contents:
            os.replace(self._partial / name, self.output / name)
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
        folder = self._partial / split
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return {name: files.enter_context(open(folder / f"{name}.bin", "wb")) for name in self._columns}
