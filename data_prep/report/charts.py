"""Drawings of a report: lengths of documents, and frequencies of tokens by rank.

Shapes: V ids of the tokenizer, B bins.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from comera_dist.report.html.drawing import COLOURS, as_svg
from data_prep.report.findings import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_BINS = 40  # chosen: of the histogram, evenly on a scale of logarithms


def length_chart(found: list[Findings]) -> Markup:
    return as_svg("lengths", partial(_draw_lengths, found=found))


def frequency_chart(found: list[Findings]) -> Markup:
    return as_svg("frequencies", partial(_draw_frequencies, found=found))


def length_bins(lengths: list[int]) -> NDArray[np.float64]:
    """The edges of at most B bins, (B + 1), from the shortest length to beyond the longest."""
    edges: NDArray[np.float64] = np.ceil(np.geomspace(max(1, min(lengths)), max(lengths) + 1, _BINS + 1))
    return np.unique(edges)  # lengths are whole: a bin between two of them would always be empty


def _draw_lengths(axes: "Axes", found: list[Findings]) -> None:
    edges = length_bins([length for one in found for length in one.lengths])
    for one, colour in zip(found, COLOURS, strict=False):
        weights = np.full(one.samples, 1 / max(1, one.samples))
        axes.hist(one.lengths, edges.tolist(), weights=weights, histtype="step", color=colour, lw=1.5)
    axes.set(xscale="log", xlabel="tokens", ylabel="share of the split")
    _label(axes.xaxis)


def _draw_frequencies(axes: "Axes", found: list[Findings]) -> None:
    for one, colour in zip(found, COLOURS, strict=False):
        falling = np.sort(one.count_V[one.count_V > 0])[::-1]
        axes.plot(np.arange(1, len(falling) + 1), falling / falling.sum(), color=colour, lw=1.5)
    axes.set(xscale="log", yscale="log", xlabel="rank of the token", ylabel="share of all tokens")
    _label(axes.xaxis)
    _label(axes.yaxis)


def _label(axis: "Axis") -> None:
    """Plain numbers at 1, 2 and 5 of each power of ten: matplotlib's own labels are formulas of TeX."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")
