"""What of a source could not be used: counted, reported, and fatal when the user asked for strictness."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from comera_dist.errors import ComeraError, DataError

# Counted where there is one only: a corpus without binary files is the one that earlier versions made.
BINARY = "binary"
KINDS = ("empty", "bad_encoding", "broken_line", "broken_file", "in_valid")
_NO_FAULTS = ("in_valid", "held_out")


class Skips:
    """Counts of what was left out, by kind, with the first place of each kind for the report.

    `in_valid` counts documents kept out of train because valid holds them, `held_out` rows that valid or test
    holds; these are no faults and never stop a run.
    """

    def __init__(self, strict: bool = False, kinds: tuple[str, ...] = KINDS):
        self.counts = dict.fromkeys(kinds, 0)
        self._strict = strict
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str, why: str) -> None:
        """Counts one; DataError instead when strict."""
        if self._strict and kind not in _NO_FAULTS:
            raise DataError(f"{where}: {why} ({kind}); mend the source, or run without --strict to skip and count it.")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._first.setdefault(kind, f"{where}: {why}")

    def report(self) -> list[str]:
        """One line for each kind that occurred."""
        return [
            f"skipped {count} {kind}, the first at {self._first[kind]}" for kind, count in self.counts.items() if count
        ]


@contextmanager
def told_on_failure(skips: Skips) -> Iterator[None]:
    """Prints what was skipped before an error goes on: it may be the reason."""
    try:
        yield
    except ComeraError:
        for line in skips.report():
            print(line, file=sys.stderr)
        raise
