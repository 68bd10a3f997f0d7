"""Finds source files: by a pattern, or as the modules of a Python package."""

import glob
import itertools
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from comera_dist.errors import DataError

# Tests repeat the code that they test, and hold odd byte patterns; site-packages differ from machine to machine.
_NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def glob_paths(pattern: str) -> tuple[Path, ...]:
    """Files that match, sorted; `**` crosses folders. Raises DataError if there are none."""
    try:
        names = set(_expand(Path(pattern).expanduser().parts))
    except (RuntimeError, ValueError) as error:  # the home of an unknown user, a NUL
        raise DataError(f"{pattern} is not a pattern of files ({error}); name some with *, ? or **") from error
    paths = tuple(sorted(path for path in map(Path, names) if path.is_file()))
    if not paths:
        raise DataError(f"no file matches {pattern}; check the pattern (quote it, and use ** for subfolders)")
    return paths


def module_paths(root: Path) -> tuple[Path, ...]:
    """Python files below `root`, sorted, without tests and other packages' installations."""
    paths = (path for path in root.rglob("*.py") if path.is_file())
    return tuple(sorted(path for path in paths if not _NOT_STDLIB & set(path.relative_to(root).parts)))


def stdlib_paths() -> tuple[Path, ...]:
    """The modules of the running interpreter's standard library."""
    return module_paths(Path(sysconfig.get_path("stdlib")))


def _expand(parts: tuple[str, ...]) -> Iterator[str]:
    """Paths as glob finds them, but each folder below `**` once: a link may lead back to a folder above it."""
    if "**" not in parts:
        yield from glob.glob(os.path.join(".", *parts))
        return
    deep = parts.index("**")
    rest = tuple(itertools.dropwhile(lambda part: part == "**", parts[deep:])) or ("*",)
    for start in glob.glob(os.path.join(".", *parts[:deep])):
        for folder in _folders(start):
            yield from _expand((glob.escape(folder), *rest))


def _folders(start: str) -> Iterator[str]:
    """`start` and all folders below it except hidden ones. Raises OSError for one that cannot be read."""
    seen = set()
    for folder, names, _ in os.walk(start, onerror=_raise, followlinks=True):
        real = os.path.realpath(folder)
        names[:] = [] if real in seen else sorted(name for name in names if not name.startswith("."))
        if real not in seen:
            yield folder
        seen.add(real)


def _raise(error: OSError) -> NoReturn:
    raise error
