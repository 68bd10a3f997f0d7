"""Work on a disk that may be full, read-only, foreign or gone: where it fails one process, all processes hear of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import Processes

DISK_ERRORS = (OSError, SafetensorError)  # safetensors has an error of its own for what the system tells it

Result = TypeVar("Result")


def together(processes: Processes, action: Callable[[], Result], what: str, remedy: str) -> list[Result]:
    """What `action` returned on each process. Collective; `action` itself must not be.

    CheckpointError on all processes where the disk failed one of them: "`what` (the error); `remedy`".
    """
    try:
        result, problem = action(), None
    except DISK_ERRORS as error:
        result, problem = None, problem_of(error)
    outcomes = processes.gather((result, problem))
    problems = [problem for _, problem in outcomes if problem is not None]
    if problems:
        raise CheckpointError(f"{what} ({problems[0]}); {remedy}")
    return [result for result, _ in outcomes]


def problem_of(error: Exception) -> str:
    """What the system says, and of which file, without the number that it gives it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__


def write_flushed(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    flush(path)


def flush(path: Path) -> None:
    """Forces a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
