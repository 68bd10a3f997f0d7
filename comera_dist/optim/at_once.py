"""Which things fit into memory at once."""

from collections.abc import Hashable, Iterator
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def in_batches(sizes: dict[Name, int], most: int) -> Iterator[list[Name]]:
    """Consecutive things whose sizes add up to `most` at most; a larger thing is alone."""
    batch: list[Name] = []
    held = 0
    for name, size in sizes.items():
        if batch and held + size > most:
            yield batch
            batch, held = [], 0
        batch.append(name)
        held += size
    if batch:
        yield batch
