"""Reading of data that one process may fail in, while the others wait for it in a collective."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from comera_dist.errors import DataError
from comera_dist.runtime.processes import Processes

T = TypeVar("T")


def read_together(read: Callable[[], T], processes: Processes) -> T:
    """What `read` returns. Collective: a DataError of one process is raised on all of them."""
    result, error = None, None
    try:
        result = read()
    except DataError as found:
        error = found
    if processes.sum([error is not None])[0]:
        raise DataError(next(filter(None, processes.gather(error and str(error))))) from error
    return result


def read_all_together(batches: Iterable[T], processes: Processes) -> Iterator[T]:
    """The `batches`, as many on each process. Collective: a DataError of one process is raised on all of them."""
    iterator, over = iter(batches), object()
    while (batch := read_together(lambda: next(iterator, over), processes)) is not over:
        yield batch
