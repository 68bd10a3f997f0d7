"""Widths at which models of one shape are tried, and how wide their feed-forward layers are."""

WIDEST = 65536  # chosen: wider than any published decoder


def widths(step: int, growth: float, widest: int = WIDEST) -> list[int]:
    """Multiples of `step` about `growth` apart; the last one is the first that is not below `widest`."""
    found = [step]
    while found[-1] < widest:
        found.append(max(found[-1] + step, round(found[-1] * growth / step) * step))
    return found


def feed_forward_width(d_ff: int, d_model: int, width: int) -> int:
    """d_ff in its ratio to d_model at another width, rounded down to a multiple of 8."""
    return max(8, d_ff * width // d_model // 8 * 8)
