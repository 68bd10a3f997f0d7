"""A folder that one process writes to."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comera_dist.errors import DataError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """DataError where another process holds `folder`, which exists."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        _lock(lock, folder)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataError(f"Another process is writing {folder}; wait until it has finished.") from error


@contextmanager
def names_place(place: Path) -> Iterator[None]:
    """Errors of the system while writing below `place` name it, where they name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(place)
        raise
