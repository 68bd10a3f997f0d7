"""Factorises sizes into balanced modes, in pure Python.

Shapes: n a number of features, order the number of modes.
"""

from functools import cache

MAX_MODE_RATIO = 2  # largest over smallest mode of a balanced factorisation; chosen: padding then stays below 2n


@cache
def factorize(n: int, order: int) -> tuple[int, ...]:
    """Splits n into `order` modes, largest first, whose product is n or slightly more.

    Balanced means that no mode is more than twice another; with equal bonds a train is smallest if its modes are equal.
    The product is exact if n has a balanced factorisation, else it is the next number that has one (always below 2n).
    Padding is free, because merged factors are sliced to the true size. So any size works, primes too.
    """
    assert n >= 1, f"cannot factorise {n}"
    assert order >= 1, f"cannot factorise into {order} modes"
    padded = n
    while True:
        candidates = [c for c in _descending(padded, order, padded) if c[0] <= MAX_MODE_RATIO * c[-1]]
        if candidates or order == 1:
            return min(candidates or [(n,)], key=sum)
        padded += 1


def _descending(n: int, order: int, largest: int) -> list[tuple[int, ...]]:
    """All ways to write n as a product of `order` factors, in descending order and none above `largest`.

    Branches whose first factor cannot be within MAX_MODE_RATIO of the others are cut early.
    """
    if order == 1:
        return [(n,)] if n <= largest else []
    mean = n ** (1 / order)
    low, high = max(1, int(mean)), min(largest, int(mean * MAX_MODE_RATIO) + 1)
    firsts = [mode for mode in range(low, high + 1) if n % mode == 0]
    return [(mode, *rest) for mode in firsts for rest in _descending(n // mode, order - 1, mode)]


def large_modes_outside(modes: tuple[int, ...], start_left: bool = True) -> tuple[int, ...]:
    """Orders modes so that the largest are at both ends of a train.

    An end core has one bond where an inner core has two, so a large mode costs mode·r there and mode·r² inside.
    """
    ordered = sorted(modes, reverse=True)
    first, second = ordered[0::2], ordered[1::2]
    left, right = (first, second) if start_left else (second, first)
    return (*left, *reversed(right))
