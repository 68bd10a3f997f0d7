"""The parts of a report."""

from typing import NamedTuple

from markupsafe import Markup

from comera_dist.report.html.page import Head, Row


class Section(NamedTuple):
    """A heading with a table, a drawing, or both. `note` is a paragraph below."""

    title: str
    heads: list[Head] = []  # noqa: RUF012 - never changed
    rows: list[Row] = []  # noqa: RUF012
    drawing: Markup | None = None
    note: str = ""


def share(part: float, whole: float) -> str:
    """In per cent; a dash if the whole is empty."""
    return f"{part / whole:.1%}" if whole else "–"
