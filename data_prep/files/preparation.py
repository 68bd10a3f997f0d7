"""The frame of a command that prepares columns: it counts skipped parts, shows progress and publishes the folder."""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from data_prep.files.column_folder import ColumnFolder
from data_prep.files.progress import Bar, say_done
from data_prep.files.skips import Skips, told_on_failure


class Preparation:
    """Fills `folder` once. `args` has --strict and --overwrite; `skipped` are the kinds of faults of the source."""

    def __init__(self, folder: ColumnFolder, args: argparse.Namespace, skipped: tuple[str, ...]):
        self.folder, self.skips = folder, Skips(args.strict, skipped)
        self._overwrite = args.overwrite

    def is_done(self) -> bool:
        """True, and a line says so, if the data exist with these settings.

        Raises DataError if the folder holds other data, damaged ones, or with --strict data without some faulty parts.
        With --overwrite it is always False.
        """
        if self._overwrite or not self.folder.is_finished():
            return False
        self.skips.check_finished(self.folder.output, self.folder.skipped())
        say_done(self.folder.output, "prepared")
        return True

    @contextmanager
    def running(self) -> Iterator[Bar]:
        """Claims the folder, and shows the bar. An error ends with the skips so far, and leaves nothing behind."""
        with told_on_failure(self.skips), Bar() as bar, self.folder.writing():
            yield bar

    def publish(self, facts: dict[str, Any], files: dict[str, bytes]) -> None:
        """Publishes what was appended, with `facts` and the counts of skips in the manifest, and further `files`."""
        self.folder.publish({**facts, "skipped": self.skips.counts}, files)

    def report(self, lines: Iterable[str]) -> None:
        """Prints the skips, then `lines`."""
        for line in [*self.skips.report(), *lines]:
            print(line)
