"""The lines that end a document in a file of text, and whether any was read."""

import re


class Separator:
    """Lines that `regex` matches as a whole. With `keeps_empty` there is a document between two such lines in a row."""

    def __init__(self, regex: str, keeps_empty: bool = False):
        self.keeps_empty, self._regex = keeps_empty, re.compile(regex)
        self._has_read = self._has_matched = False

    def ends_document(self, line: bytes) -> bool:
        """`line` may have its line end."""
        self._has_read = True
        if not self._regex.fullmatch(line.rstrip(b"\r\n").decode("utf-8", "replace")):
            return False
        self._has_matched = True
        return True

    def notes(self) -> list[str]:
        """For the report: one line if lines were read and none matched, otherwise none."""
        if self._has_matched or not self._has_read:
            return []
        given = f"--document-separator {self._regex.pattern!r}"
        return [f"no line that was read matches {given}: each file of text is one document"]
