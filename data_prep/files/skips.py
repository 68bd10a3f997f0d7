"""Counts the parts of a source that cannot be used. With --strict the first one is an error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comera_dist.errors import ComeraError, DataError

_NO_FAULTS = ("in_valid", "held_out", "near_copy")  # copies of other documents or rows: never an error


class Skips:
    """The number of parts left out, and the first place, by kind. Kinds beyond `kinds` may be added too."""

    def __init__(self, strict: bool, kinds: tuple[str, ...]):
        self.counts = dict.fromkeys(kinds, 0)
        self._strict = strict
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str, why: str, count: int = 1) -> None:
        """Counts `count` parts, the first of them at `where`. Raises DataError instead if strict."""
        if self._strict and kind not in _NO_FAULTS:
            raise DataError(self._sentence(kind, f"{where}: {why}"))
        self.counts[kind] = self.counts.get(kind, 0) + count
        self._first.setdefault(kind, f"{where}: {why}")

    def place(self) -> dict[str, dict[str, Any]]:
        """The counts so far and the first places, as JSON."""
        return {"counts": dict(self.counts), "first": dict(self._first)}

    def resume(self, place: dict[str, dict[str, Any]]) -> None:
        """Goes on with the counts of an earlier run. Raises DataError if strict and it skipped a fault."""
        self.counts, self._first = place["counts"], place["first"]
        faults = faults_of(self.counts)
        if self._strict and faults:
            kind = next(iter(faults))
            raise DataError(self._sentence(kind, self._first[kind]))

    def check_finished(self, output: Path, counts: object) -> None:
        """Raises DataError if strict and `counts`, which the record of `output` has, name a fault."""
        faults = faults_of(counts)
        if self._strict and faults:
            told = ", ".join(f"{count} {kind}" for kind, count in faults.items())
            raise DataError(
                f"{output} was made without --strict and lacks parts of the source ({told}); mend the source and pass "
                "--overwrite, or run without --strict"
            )

    def report(self) -> list[str]:
        """One line for each kind that occurred."""
        return [
            f"skipped {count} {kind}, the first at {self._first[kind]}" for kind, count in self.counts.items() if count
        ]

    def _sentence(self, kind: str, fault: str) -> str:
        return f"{fault} ({kind}); mend the source, or run without --strict to skip and count it"


def faults_of(counts: object) -> dict[str, int]:
    """The kinds of faults that occurred, of the counts of a record, which somebody may have edited."""
    given = counts.items() if isinstance(counts, dict) else ()
    return {kind: count for kind, count in given if isinstance(count, int) and count and kind not in _NO_FAULTS}


@contextmanager
def told_on_failure(skips: Skips) -> Iterator[None]:
    """Prints the skips before an error goes on: they may be the reason."""
    try:
        yield
    except ComeraError:
        for line in skips.report():
            print(line, file=sys.stderr)
        raise
