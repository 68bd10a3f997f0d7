"""The progress bar of every command, on stderr, the seconds for its report, and the line of a command with no work."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich import progress
from rich.console import Console

T = TypeVar("T")
_COUNTED = (progress.MofNCompleteColumn, progress.TimeElapsedColumn)
_BYTES = (progress.DownloadColumn, progress.TransferSpeedColumn, progress.TimeRemainingColumn)


class Bar:
    """Shown inside `with`. Counts rows, or bytes of text. `seconds` is how long it was shown."""

    def __init__(self, counts_bytes: bool = False):
        units = [column() for column in (_BYTES if counts_bytes else _COUNTED)]
        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *units)
        self._progress, self._started = progress.Progress(*columns, console=Console(stderr=True)), time.perf_counter()

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self._progress.stop()

    def begin(self, task: str, total: int | None = None) -> None:
        """Starts a line of its own for a task. A `total` of None is unknown."""
        self._task = self._progress.add_task(task, total=total)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def counted(self, things: Iterable[T]) -> Iterator[T]:
        """`things`, each of which advances the bar by one."""
        for thing in things:
            yield thing
            self.advance(1)


def say_done(output: Path, made: str) -> None:
    """Says that an earlier run made `output`. Sources may be gone by now, so nobody looks whether they have changed."""
    print(
        f"{output} is already {made} with these settings; nothing to do. If the source has changed, pass --overwrite."
    )
