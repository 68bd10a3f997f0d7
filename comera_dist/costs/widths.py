"""Widths at which models of one shape are tried, and how wide their feed-forward layers are."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

WIDEST = 65536  # chosen: wider than any published decoder


def widths(step: int, growth: float, widest: int = WIDEST) -> list[int]:
    """Multiples of `step` about `growth` apart; the last one is the first that is not below `widest`."""
    found = [step]
    while found[-1] < widest:
        found.append(max(found[-1] + step, round(found[-1] * growth / step) * step))
    return found


def widest_fitting(widths: Sequence[int], exceeds: Callable[[int], bool], further: float) -> int | None:
    """The widest of rising `widths` that does not exceed a budget; None if none fits.

    Costs of block trains can fall where the width changes their blocks. So widths beyond the first one that costs too
    much are tried, too, up to `further` times it.
    """
    fitting = bisect_right(widths, False, key=exceeds)
    tried = (width for width in widths[fitting:] if width <= further * widths[fitting])
    fits = [*widths[:fitting][-1:], *(width for width in tried if not exceeds(width))]
    return fits[-1] if fits else None


def feed_forward_width(d_ff: int, d_model: int, width: int) -> int:
    """d_ff in its ratio to d_model at another width, rounded down to a multiple of 8."""
    return max(8, d_ff * width // d_model // 8 * 8)
