"""Compares the content of prepared data with their manifest, once in every start of a run.

A fingerprint is a hash of the manifest alone: only hashing finds a file of the same size with other content.
"""

import threading
from pathlib import Path
from socket import gethostname

from comera_dist.data.contents import Contents, Interrupted
from comera_dist.errors import DataError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.sharing import share_out

# Bytes that are hashed before the first step. A process hashed 1.0 GB a second (measured on an AMD EPYC, page cache
# warm), so a start waits for about a second.
WAIT_BYTES = 1 << 30


class DataCheck:
    """Hashes every file once on every host, shared among its processes. Collective.

    Data of up to `wait_bytes` are hashed before it returns; larger data on a thread, whose findings
    `raise_if_damaged` reports. Raises DataError on all processes if one finds damage.
    """

    def __init__(self, contents: Contents, processes: Processes, wait_bytes: int = WAIT_BYTES):
        self._contents, self._processes = contents, processes
        self._stopped, self._over = threading.Event(), False
        self._damage: str | None = None
        sizes = {file: _size(file) for file in contents.sha256}
        starts = processes.gather((gethostname(), sum(sizes.values())))
        self._thread = threading.Thread(target=self._hash, args=(self._share(sizes, starts),), daemon=True)
        self._thread.start()
        if max(total for _, total in starts) <= wait_bytes:
            self.complete()

    def complete(self) -> None:
        """Waits until every file is hashed. Collective. Raises DataError on all processes if one finds damage."""
        self._thread.join()
        self.raise_if_damaged()

    def raise_if_damaged(self) -> None:
        """DataError on all processes if one has found damage so far. Collective until all files are hashed."""
        if self._over:
            return
        # The order matters: a thread that is not alive has already written its finding.
        states = self._processes.gather((not self._thread.is_alive(), self._damage))
        found = [damage for _, damage in states if damage]
        if found:
            raise DataError(found[0])
        self._over = all(ended for ended, _ in states)

    def close(self) -> None:
        """Stops hashing, and says so if files are left, as in a short run on large data."""
        self._stopped.set()
        self._thread.join()
        if not self._over:
            self._processes.say(
                "The run ended before all of its data were compared with the manifest; data_prep/verify.py compares "
                "them."
            )

    def _share(self, sizes: dict[Path, int], starts: list[tuple[str, int]]) -> list[Path]:
        """This process's files among the processes of its host: each host may have a copy of its own."""
        index = self._processes.index
        peers = [i for i, (host, _) in enumerate(starts) if host == starts[index][0]]
        owners = share_out(sizes, len(peers))
        return [file for file, owner in owners.items() if peers[owner] == index]

    def _hash(self, files: list[Path]) -> None:
        try:
            for file in files:
                self._contents.check(file, self._stopped.is_set)
        except DataError as error:
            self._damage = str(error)
        except Interrupted:
            pass


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # reported when the file is hashed
        return 0
