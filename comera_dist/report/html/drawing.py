"""Drawings of matplotlib as SVG that stands in a page and takes its colour of text."""

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Chosen: of middle lightness, so that they stand out from a light page and from a dark one.
COLOURS = ("#3b82c4", "#e07b39", "#3f9e5c", "#d64f5d", "#8b6fc0", "#a0785a", "#d170b0", "#7f8a94")
LINE_STYLES = ("solid", "dashed", "dotted")  # of matplotlib and of CSS; each has a round of all colours
_TEXT = "#010203"  # stands for the page's colour of text while matplotlib draws
_THEME: Any = {  # of matplotlib, whose list of keys is longer than this file
    "text.parse_math": False,
    "svg.fonttype": "none",  # the page's fonts, and text that can be searched
    "svg.hashsalt": "comera",  # the same page for the same files
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "legend.facecolor": "none",
    "legend.edgecolor": "none",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _TEXT),
}


def as_svg(prefix: str, draw: Callable[["Axes"], None]) -> Markup:
    """A drawing as an SVG element whose ids begin with `prefix`, which must be its own in the page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_THEME):
        figure, file = Figure(figsize=(9, 4.5), layout="constrained"), io.StringIO()
        axes = figure.subplots()
        axes.grid(color=_TEXT, alpha=0.12)
        draw(axes)
        figure.savefig(file, format="svg", dpi=150, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return Markup(_in_page(file.getvalue(), prefix))  # matplotlib has escaped all text


def _in_page(svg: str, prefix: str) -> str:
    """Without the declarations that only a file needs, and with ids that no other drawing of the page has."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'\s(xmlns(:xlink)?|version)="[^"]*"', "", element, count=3).replace("xlink:href", "href")
    element = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", element)
    return element.replace(_TEXT, "currentColor")
