"""Renders a page from a template that fills frame.html."""

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined


class Head(NamedTuple):
    """The head of a column. `colour` and `line` are those of its curve in a drawing; `colour` is None without a curve.

    `line` is one of `drawing.LINE_STYLES`.
    """

    name: str
    colour: str | None = None
    line: str = "solid"


class Row(NamedTuple):
    name: str
    cells: list[str]  # one for each head


def render(template: Path, title: str, **values: Any) -> str:
    """The page as HTML. `template` extends frame.html; text in `values` is escaped, `Markup` is not."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    return environment.get_template(template.name).render(title=title, now=now, **values)
