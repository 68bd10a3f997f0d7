"""The folders of checkpoints on the disk, and errors of the disk as sentences."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from comera_dist.errors import CheckpointError, DiskError

# Errors of a file system on another host: stale handles after its restart, and a connection that is gone.
AWAY = {
    *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
}
FOLDER = re.compile("step_([0-9]{7,})")  # `folder_name` pads to 7 digits, so that names sort up to 10 million steps


def published(root: Path) -> list[Path]:
    """The checkpoint folders in `root`, newest first. Raises OSError where `root` exists but cannot be listed."""
    try:
        with os.scandir(root) as entries:
            folders = [Path(entry) for entry in entries if FOLDER.fullmatch(entry.name) and entry.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(folders, key=step_of, reverse=True)


def folder_name(step: int) -> str:
    return f"step_{step:07d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def check_plain(file: Path) -> None:
    """Raises OSError for a pipe or a device, whose reading might never end, and for a file that is missing."""
    if stat.S_IFMT(file.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # reading a folder is an OSError anyway
        raise OSError(errno.EINVAL, "it is not a plain file", str(file))


def is_away(error: Exception) -> bool:
    """Whether a network file system does not answer, which says nothing about the file."""
    return isinstance(error, OSError) and error.errno in AWAY


def passes(error: Exception) -> bool:
    """Whether an error of the disk is often gone later, unlike one of a full disk or of permissions."""
    return is_away(error) or (isinstance(error, OSError) and error.errno == errno.EIO)


@contextmanager
def disk_errors_named(what: str, remedy: str) -> Iterator[None]:
    """Turns an error of the disk into the CheckpointError "`what` (the error); `remedy`"; DiskError if it passes."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors reports a failing disk by its own class
        kind = DiskError if passes(error) else CheckpointError
        raise kind(f"{what} ({problem_of(error)}); {remedy}") from error


def problem_of(error: Exception) -> str:
    """The message of an error of the disk and the file that it names, without the error number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__
