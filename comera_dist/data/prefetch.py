"""Reads the batches of the next step while this one is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple


class Prefetch:
    """Calls `read(rows_done)` one step ahead, on a thread."""

    def __init__(self, read: Callable[[int], list[NamedTuple]], rows_a_step: int):
        self._read, self._rows_a_step = read, rows_a_step
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ahead: dict[int, Future[list[NamedTuple]]] = {}  # batches of the next step by its `rows_done`

    def step(self, rows_done: int) -> list[NamedTuple]:
        """The result of `read(rows_done)`, or its error."""
        ahead = self._ahead.pop(rows_done, None)
        batches = self._read(rows_done) if ahead is None else ahead.result()
        following = rows_done + self._rows_a_step
        self._ahead = {following: self._pool.submit(self._read, following)}
        return batches

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
