"""Work that can fail on one process while the others wait for it: its error is raised on all processes."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from comera_dist.errors import ComeraError

if TYPE_CHECKING:
    from comera_dist.runtime.processes import Processes

T = TypeVar("T")


def together(action: Callable[[], T], processes: "Processes") -> T:
    """Returns the result of `action` on this process. Collective: one small all-reduce; `action` must make none.

    A ComeraError of one process is raised on all of them; if several fail, that of the lowest index.
    """
    results: list[T] = []
    error = None
    try:
        results.append(action())
    except ComeraError as found:
        error = found
    if processes.sum([error is not None])[0]:
        first: ComeraError = next(filter(None, processes.gather(error)))
        raise first from (None if first is error else error)
    return results[0]


def iterate_together(items: Iterable[T], processes: "Processes") -> Iterator[T]:
    """The `items`, equally many on each process. Collective: a ComeraError of one process is raised on all of them."""
    iterator = iter(items)
    while item := together(lambda: list(islice(iterator, 1)), processes):
        yield item[0]
