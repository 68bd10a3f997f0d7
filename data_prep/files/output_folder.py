"""The folder of a data set: one process claims it, fills `.partial`, and publishes it with the manifest last."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from comera_dist.config.secrets import redacted
from comera_dist.data.manifest import MANIFEST, PARTIAL, read_json
from comera_dist.errors import DataError
from comera_dist.storage.files import write_whole
from data_prep.files.split import TEST, TRAIN, VALID

SUFFIX = ".bin"  # of all files of a split, in every kind of data set


class OutputFolder:
    """A data set exists when its manifest exists. `parameters` are all settings that decide its content.

    Raises DataError if they hold a secret.
    """

    def __init__(self, output: Path, parameters: dict[str, Any]):
        check_without_secrets(output, parameters)
        self.output, self.partial, self.parameters = output, output / PARTIAL, parameters
        self._is_publishing = False

    def is_published(self, **facts: object) -> bool:
        """True if a data set with these parameters and `facts` in its manifest exists.

        Raises DataError if another data set does.
        """
        try:
            manifest = read_json(self.output / MANIFEST)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        if not isinstance(manifest, dict):
            return False
        if any(manifest.get(key) != value for key, value in {"parameters": self.parameters, **facts}.items()):
            raise self.other_settings()
        return True

    def skipped(self) -> object:
        """The counts of skipped parts in the manifest of a finished data set; None if it has none."""
        return read_json(self.output / MANIFEST).get("skipped")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Holds the folder for this process. Raises DataError if another process holds it, or if files of others are
        where the data set will be.

        An OSError that names no file, such as a full disk, gets the folder's name.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.output, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_ours()
            yield
        except BlockingIOError as error:
            raise DataError(f"another process is writing {self.output}; wait until it has finished") from error
        except OSError as error:
            error.filename = error.filename or str(self.output)
            raise
        finally:
            os.close(lock)

    def replace_with(self, manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        """Moves the folder of each split out of `.partial`, writes `files`, and the manifest last."""
        self._is_publishing = True
        (self.output / MANIFEST).unlink(missing_ok=True)
        for split in manifest["splits"]:
            shutil.rmtree(self.output / split, ignore_errors=True)
            os.replace(self.partial / split, self.output / split)
        for name, content in files.items():
            write_whole(self.output / name, content, flushed=True)
        write_json(self.output / MANIFEST, manifest)
        self.discard()

    def _check_ours(self) -> None:
        """DataError if the folder of a split, which publishing replaces, holds a file that no command here wrote."""
        is_ours = any((self.output / name).exists() for name in (MANIFEST, PARTIAL))
        for folder in (self.output / split for split in (TRAIN, VALID, TEST)):
            if not folder.is_dir():
                continue
            foreign = (path for path in sorted(folder.iterdir()) if not is_ours or path.suffix != SUFFIX)
            if (path := next(foreign, None)) is not None:
                raise DataError(
                    f"{path} belongs to no prepared data, and {folder} would be replaced; name another --output, or "
                    f"move the folder away"
                )

    def abandon(self) -> None:
        """Like `discard`, but leaves `.partial` of a data set half of which is at its place: it says whose that is."""
        if not self._is_publishing:
            self.discard()

    def discard(self) -> None:
        """Removes everything that is not published."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def other_settings(self) -> DataError:
        """The error for a folder that these parameters would fill with other data."""
        return DataError(
            f"{self.output} holds data of another source, split or tokenizer, or of other settings; pass --overwrite "
            "to replace them, or name another --output"
        )


def check_without_secrets(output: Path, parameters: dict[str, Any]) -> None:
    """Raises DataError if the record of `parameters`, which others read with the data, would show a secret."""
    text = json.dumps(parameters, ensure_ascii=False)
    if redacted(text) != text:
        raise DataError(
            f"the settings of {output} hold a password or the value of an environment variable that is secret, and "
            f"they are recorded with the data; remove it from the command"
        )


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=1) + "\n", flushed=True)


def sync(file: IO[bytes]) -> None:
    """Waits until the file's content is on the disk."""
    file.flush()
    os.fsync(file.fileno())
