"""Values of a manifest, taken by key and checked: a manifest may have been damaged by a copy or by an editor."""

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Names of splits, columns and files that data_prep/ writes; a path that leads out of the folder is none.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST = 2**48  # entries of one file: more than a file system holds, and sizes computed from them fit 64 bits


class ManifestError(Exception):
    """A value is missing or of another type. What opens the data makes a DataError with a remedy of it."""


def read_json(file: Path) -> Any:
    """What `file` holds. OSError where it cannot be read, ManifestError where it is no JSON."""
    if stat.S_IFMT(file.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
        raise ManifestError("it is no plain file")  # a pipe or a device might be read for ever
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"it is not JSON ({error})") from error


class Fields:
    """A JSON object. Every access raises ManifestError where the value is not as expected; `place` names the object."""

    def __init__(self, record: Any, place: str = ""):
        if not isinstance(record, dict):
            raise ManifestError(f"{place or 'it'} is not an object")
        self._record, self._place = record, place

    def whole(self, key: str, least: int = 0, most: int = _MOST) -> int:
        value = self._get(key)
        if type(value) is not int or not least <= value <= most:
            raise self._unexpected(key, str(least) if least == most else f"a whole number in {least}..{most}")
        return value

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self._get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self._unexpected(key, f"one of {', '.join(allowed)}")
        return value

    def name(self, key: str) -> str:
        """A file name without a folder."""
        value = self._get(key)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self._unexpected(key, "a plain name")
        return value

    def sha256(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise self._unexpected(key, "64 hexadecimal digits")
        return value

    def items_of(self, key: str) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self._unexpected(key, "a list")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.items_of(key)
        if not all(isinstance(text, str) for text in value):
            raise self._unexpected(key, "a list of texts")
        return value

    def wholes(self, key: str, least: int, most: int) -> list[int]:
        value = self.items_of(key)
        if not all(type(number) is int and least <= number <= most for number in value):
            raise self._unexpected(key, f"a list of whole numbers in {least}..{most}")
        return value

    def fields(self, key: str) -> "Fields":
        return Fields(self._get(key), self._path(key))

    def named(self) -> Iterator[str]:
        """The keys, each of which must be a plain name."""
        for key in self._record:
            if not _NAME.fullmatch(key):
                raise ManifestError(f"{self._path(repr(key))} is not a plain name")
            yield key

    def _get(self, key: str) -> Any:
        if key not in self._record:
            raise ManifestError(f"{self._path(key)} is missing")
        return self._record[key]

    def _path(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _unexpected(self, key: str, expected: str) -> ManifestError:
        return ManifestError(f"{self._path(key)} is {shortened(self._record[key])}, expected {expected}")


def shortened(value: Any, length: int = 40) -> str:
    text = json.dumps(value)
    return text if len(text) <= length else f"{text[:length]}…"
