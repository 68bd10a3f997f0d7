"""Errors of a disk that may be full, read-only, foreign or gone, as sentences."""

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from comera_dist.errors import CheckpointError

DISK_ERRORS = (OSError, SafetensorError)  # safetensors has an error of its own for what the system tells it


@contextmanager
def disk_errors_named(what: str, remedy: str) -> Iterator[None]:
    """CheckpointError "`what` (the error); `remedy`" in place of an error of the disk."""
    try:
        yield
    except DISK_ERRORS as error:
        raise CheckpointError(f"{what} ({problem_of(error)}); {remedy}") from error


def problem_of(error: Exception) -> str:
    """What the system says, and of which file, without the number that it gives it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__
