"""Reads the batches of the next step while this one is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple


class Prefetch:
    """Calls `read(rows_done, rows)` one step ahead, on a thread."""

    def __init__(self, read: Callable[[int, int], list[NamedTuple]]):
        self._read = read
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ahead: dict[tuple[int, int], Future[list[NamedTuple]]] = {}  # batches of the next step by its arguments

    def step(self, rows_done: int, rows: int, next_rows: int) -> list[NamedTuple]:
        """The result of `read(rows_done, rows)`, or its error. The next step is expected to read `next_rows` rows."""
        ahead = self._ahead.pop((rows_done, rows), None)
        batches = self._read(rows_done, rows) if ahead is None else ahead.result()
        following = rows_done + rows, next_rows
        self._ahead = {following: self._pool.submit(self._read, *following)}
        return batches

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
