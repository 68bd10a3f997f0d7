"""Reads the batches of the next step while this one is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple


class Prefetch:
    """Calls `read` one step ahead, on a thread: batches are a function of the rows done, so nothing can be missed."""

    def __init__(self, read: Callable[[int], list[NamedTuple]], rows_a_step: int):
        self._read, self._rows_a_step = read, rows_a_step
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._next: tuple[int, Future[list[NamedTuple]]] | None = None  # rows done before it, and its batches

    def step(self, rows_done: int) -> list[NamedTuple]:
        """What `read(rows_done)` returns or raises."""
        if self._next is not None and self._next[0] == rows_done:
            batches = self._next[1].result()
        else:
            batches = self._read(rows_done)
        following = rows_done + self._rows_a_step
        self._next = following, self._pool.submit(self._read, following)
        return batches

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
