"""Work that one process may fail in while the others wait for it: its error is raised on all processes."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from comera_dist.errors import ComeraError
from comera_dist.runtime.processes import Processes

T = TypeVar("T")


def together(action: Callable[[], T], processes: Processes) -> T:
    """Returns the result of `action` on this process. Collective: one small all-reduce; `action` must make none.

    A ComeraError of one process is raised on all of them, the one of the lowest index where several fail.
    """
    result, error = None, None
    try:
        result = action()
    except ComeraError as found:
        error = found
    if processes.sum([error is not None])[0]:
        first = next(filter(None, processes.gather(error)))
        raise first from (None if first is error else error)
    return result


def iterate_together(items: Iterable[T], processes: Processes) -> Iterator[T]:
    """The `items`, as many on each process. Collective: a ComeraError of one process is raised on all of them."""
    iterator, over = iter(items), object()
    while (item := together(lambda: next(iterator, over), processes)) is not over:
        yield item
