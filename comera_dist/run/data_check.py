"""Whether the files of prepared data are those that their manifest lists: looked at once in every start of a run.

A fingerprint names the manifest alone. A file of the same size with other content passes until it is hashed.
"""

import threading
from pathlib import Path
from socket import gethostname

from comera_dist.data.contents import Contents, Interrupted
from comera_dist.errors import DataError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.sharing import share_out

# A process hashed 1.0 GB a second (AMD EPYC, page cache warm): a start waits for a second, not for longer.
WAIT_BYTES = 1 << 30


class DataCheck:
    """Hashes every file once on every host, shared among its processes, whatever the times of change say.

    Data of up to `wait_bytes` are hashed here; larger ones on a thread, and `raise_if_damaged` tells. Collective.
    DataError on all processes when one finds damage.
    """

    def __init__(self, contents: Contents, processes: Processes, wait_bytes: int = WAIT_BYTES):
        self._contents, self._processes = contents, processes
        self._stopped, self._over, self._damage = threading.Event(), False, None
        sizes = {file: _size(file) for file in contents.sha256}
        starts = processes.gather((gethostname(), sum(sizes.values())))
        self._thread = threading.Thread(target=self._hash, args=(self._share(sizes, starts),), daemon=True)
        self._thread.start()
        if max(total for _, total in starts) <= wait_bytes:
            self.complete()

    def complete(self) -> None:
        """Waits until every file is hashed. Collective. DataError on all processes when one finds damage."""
        self._thread.join()
        self.raise_if_damaged()

    def raise_if_damaged(self) -> None:
        """DataError on all processes when one has found damage so far. Collective until all files are hashed."""
        if self._over:
            return
        # In this order: what is found last is found before the thread ends.
        states = self._processes.gather((not self._thread.is_alive(), self._damage))
        found = [damage for _, damage in states if damage]
        if found:
            raise DataError(found[0])
        self._over = all(ended for ended, _ in states)

    def close(self) -> None:
        """Stops hashing; says so where files are left, which a short run on large data may leave."""
        self._stopped.set()
        self._thread.join()
        if not self._over:
            self._processes.say(
                "The run ended before all of its data were compared with the manifest; data_prep/verify.py compares "
                "them."
            )

    def _share(self, sizes: dict[Path, int], starts: list[tuple[str, int]]) -> list[Path]:
        """Files for this process among those of its host: hosts may have copies of their own."""
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
    except OSError:  # hashing it says what is wrong
        return 0
