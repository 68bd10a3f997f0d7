"""Counts the parts of a source that cannot be used. With --strict the first one is an error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from comera_dist.errors import ComeraError, DataError

_NO_FAULTS = ("in_valid", "held_out", "near_copy")  # copies of other documents or rows: never an error


class Skips:
    """The number of parts left out, and the first place, by kind. Kinds beyond `kinds` may be added too."""

    def __init__(self, strict: bool, kinds: tuple[str, ...]):
        self.counts = dict.fromkeys(kinds, 0)
        self._strict = strict
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str, why: str) -> None:
        """Counts one part. Raises DataError instead if strict."""
        if self._strict and kind not in _NO_FAULTS:
            raise DataError(f"{where}: {why} ({kind}); mend the source, or run without --strict to skip and count it")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._first.setdefault(kind, f"{where}: {why}")

    def report(self) -> list[str]:
        """One line for each kind that occurred."""
        return [
            f"skipped {count} {kind}, the first at {self._first[kind]}" for kind, count in self.counts.items() if count
        ]


@contextmanager
def told_on_failure(skips: Skips) -> Iterator[None]:
    """Prints the skips before an error goes on: they may be the reason."""
    try:
        yield
    except ComeraError:
        for line in skips.report():
            print(line, file=sys.stderr)
        raise
