"""The lock of a run directory: one run is trained by one set of processes at a time."""

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # errors of file systems without locks, as on some clusters


class RunLock:
    """Held by the first process of a run. The kernel releases it however that process ends, so no lock is left over."""

    def __init__(self, path: Path):
        self._path = path
        self._file: TextIO | None = None

    def acquire(self) -> str | None:
        """None, or the process that holds it in words. Raises OSError if the file cannot be opened or written."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                return _holder(file)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            reason = f"{self._path} cannot be locked there ({error.strerror})"
            print(f"{reason}; start no other run in its folder.", flush=True)
        self._file = file
        try:
            _sign(file)
        except OSError:
            self.release()
            raise
        return None

    def holder(self) -> str | None:
        """The process that holds it in words, or None. Raises OSError if the file cannot be opened."""
        if not self._path.exists():
            return None
        with self._path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
        return None

    def is_held(self) -> bool:
        """False if the file was not acquired, or was removed or replaced since."""
        try:
            return self._file is not None and os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a signature that does not fit on the disk
                self._file.close()
            self._file = None


def _sign(file: TextIO) -> None:
    since = datetime.now().astimezone().isoformat()
    file.truncate(0)
    file.write(json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since}))
    file.flush()


def _holder(file: TextIO) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
        return f"process {holder['process']} on host {holder['host']} since {holder['since'][:19].replace('T', ' ')}"
    except (ValueError, KeyError, TypeError):  # the holder has not signed yet
        return "held by another process"
