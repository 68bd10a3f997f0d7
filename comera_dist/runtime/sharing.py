"""Assigns things to processes evenly by size."""

from collections.abc import Hashable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def share_out(sizes: dict[Name, int], count: int) -> dict[Name, int]:
    """An owner among `count` processes for each thing: in turn, the process with the least so far."""
    filled, owners = [0] * count, {}
    for name, size in sizes.items():
        owners[name] = filled.index(min(filled))
        filled[owners[name]] += size
    return owners


def deal_out(sizes: dict[Name, int], count: int) -> dict[Name, int]:
    """Like `share_out`, largest first: the fullest process holds at most 4/3 of the best possible (Graham 1969)."""
    return share_out(dict(sorted(sizes.items(), key=lambda item: -item[1])), count)
