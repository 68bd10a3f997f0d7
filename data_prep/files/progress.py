"""The progress bar of every command, on stderr, and the seconds for its report."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

T = TypeVar("T")
_COUNTED = (MofNCompleteColumn, TimeElapsedColumn)
_BYTES = (DownloadColumn, TransferSpeedColumn, TimeRemainingColumn)


class Bar:
    """Shown inside `with`. Counts rows, or bytes of text; `seconds` is how long it was shown."""

    def __init__(self, counts_bytes: bool = False):
        units: list[ProgressColumn] = [column() for column in (_BYTES if counts_bytes else _COUNTED)]
        columns = (TextColumn("{task.description}"), BarColumn(), *units)
        self._progress, self._task = Progress(*columns, console=Console(stderr=True)), None

    def __enter__(self) -> "Bar":
        self._progress.start()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_) -> None:
        self.seconds = time.perf_counter() - self._started
        self._progress.stop()

    def begin(self, task: str, total: int | None = None) -> None:
        """Starts a line of its own for a task; a `total` of None is unknown."""
        self._task = self._progress.add_task(task, total=total)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def counted(self, things: Iterable[T]) -> Iterator[T]:
        """`things`, each of which advances the bar by one."""
        for thing in things:
            yield thing
            self.advance(1)
