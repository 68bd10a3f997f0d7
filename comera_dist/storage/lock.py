"""One run, one set of processes: the lock of a run directory."""

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # file systems of some clusters offer none


class RunLock:
    """Held by the first process for as long as it goes on with the run.

    The kernel lets go of it when that process ends, however it ends, so a lock is never left over.
    """

    def __init__(self, path: Path):
        self._path, self._file = path, None

    def acquire(self) -> str | None:
        """None, or who holds it. Raises OSError where the file cannot be opened or written."""
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
            print(
                f"{self._path} cannot be locked there ({error.strerror}); start no other run in its folder.", flush=True
            )
        self._file = file
        self._sign()
        return None

    def is_held(self) -> bool:
        """False where the file was removed or replaced since."""
        try:
            found, own = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a signature that does not fit on the disk
                self._file.close()
            self._file = None

    def _sign(self) -> None:
        holder = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now().astimezone().isoformat(),
        }
        try:
            self._file.truncate(0)
            self._file.write(json.dumps(holder))
            self._file.flush()
        except OSError:
            self.release()
            raise


def _holder(file) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
        return f"process {holder['process']} on host {holder['host']} since {holder['since'][:19].replace('T', ' ')}"
    except (ValueError, KeyError, TypeError):  # it has not signed yet
        return "held by another process"
