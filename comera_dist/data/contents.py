"""The files of prepared data, compared with the hashes and sizes that their manifest lists."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from comera_dist.errors import DataError

_BLOCK_BYTES = 1 << 20  # chosen: hashing can be stopped after each block


class Interrupted(Exception):
    """Hashing was stopped because nobody needs the result any more."""


def file_sha256(path: Path, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Raises OSError, and Interrupted if `is_stopped` returns true between two blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if is_stopped():
                raise Interrupted
    return digest.hexdigest()


@dataclass(frozen=True)
class Contents:
    """The sha256 of every file of a data set. `remedy` ends the sentence of each error."""

    sha256: dict[Path, str]
    remedy: str

    def verify(self) -> None:
        """Hashes every file. Raises DataError for the first one that differs."""
        for file in self.sha256:
            self.check(file)

    def check(self, file: Path, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Raises DataError if `file` cannot be read or has another hash, and Interrupted like `file_sha256`."""
        if self.size(file) is None:
            raise DataError(f"{file} is missing; {self.remedy}")
        try:
            found = file_sha256(file, is_stopped)
        except OSError as error:
            raise self._unreadable(file, error) from error
        if found != self.sha256[file]:
            raise DataError(f"{file} is damaged: its sha256 is not the manifest's; {self.remedy}")

    def check_size(self, file: Path, expected: int) -> None:
        """Raises DataError unless `file` has `expected` bytes."""
        found = self.size(file)
        if found is None:
            raise DataError(f"{file} is missing, the manifest lists it with {expected} bytes; {self.remedy}")
        if found != expected:
            raise DataError(f"{file} has {found} bytes, the manifest says {expected}; {self.remedy}")

    def size(self, file: Path) -> int | None:
        """Bytes of `file`, None if there is no such file. Raises DataError if its folder cannot be read."""
        try:
            return file.stat().st_size if file.is_file() else None
        except OSError as error:
            raise self._unreadable(file, error) from error

    def _unreadable(self, file: Path, error: OSError) -> DataError:
        return DataError(f"{file} cannot be read ({error.strerror}); {self.remedy}")
