"""The speed of training steps."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Meter:
    """Time spent in steps since it was made: `with meter:` around each, and inside it, `with waiting():` for data.

    `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._seconds, self._waited, self._steps = clock, 0.0, 0.0, 0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *exception) -> None:
        self._seconds += self._clock() - self._start
        self._steps += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = self._clock()
        yield
        self._waited += self._clock() - start

    @property
    def waited_fraction(self) -> float:
        return self._waited / self._seconds

    @property
    def seconds_a_step(self) -> float:
        return self._seconds / self._steps
