"""Finds source files: by a pattern, or as the modules of a Python package."""

import errno
import fnmatch
import glob
import itertools
import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from comera_dist.errors import DataError

# Tests repeat the code that they test, and hold odd byte patterns; site-packages differ from machine to machine.
_NOT_STDLIB = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Of a name that leads to no file or folder. Any other error hides what may be one.
_NO_SUCH = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def glob_paths(pattern: str) -> tuple[Path, ...]:
    """Files that match, sorted; `**` crosses folders. A link that leads nowhere is one, so that reading it fails.

    A file that matches under several names, such as links, comes once.
    Raises DataError if there are none, OSError for a folder that cannot be read.
    """
    try:
        found = set(map(Path, _expand(".", Path(pattern).expanduser().parts)))
        paths = each_once(sorted(filter(_is_source, found)), set())
    except (RuntimeError, ValueError) as error:  # the home of an unknown user, a NUL
        raise DataError(f"{pattern} is not a pattern of files ({error}); name some with *, ? or **") from error
    if not paths:
        raise DataError(f"no file matches {pattern}; check the pattern (quote it, and use ** for subfolders)")
    return paths


def each_once(paths: Iterable[Path], seen: set[Path]) -> tuple[Path, ...]:
    """The paths of files that are not in `seen`, under the first of their names. `seen` takes their real paths."""
    kept: list[Path] = []
    for path in paths:
        real = Path(os.path.realpath(path))
        if real not in seen:
            kept.append(path)
        seen.add(real)
    return tuple(kept)


def file_identity(path: Path) -> tuple[object, ...]:
    """Equal for all names of one file, links of both kinds. Of a link that leads nowhere it is the place it names."""
    try:
        found = path.stat()
    except OSError:
        return (os.path.realpath(path),)
    return found.st_dev, found.st_ino


def module_paths(root: Path) -> tuple[Path, ...]:
    """Python modules below `root`, sorted, without tests, other packages' installations and hidden files of editors.

    A link that leads nowhere is one, so that reading it fails. Raises OSError for a folder that cannot be read.
    """
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=_pass_if_absent):
        subfolders[:] = [name for name in subfolders if name not in _NOT_STDLIB]
        paths += (Path(folder, name) for name in names if name.endswith(".py") and not name.startswith("."))
    return tuple(sorted(filter(_is_source, paths)))


def stdlib_paths() -> tuple[Path, ...]:
    """The modules of the running interpreter's standard library."""
    return module_paths(Path(sysconfig.get_path("stdlib")))


def _expand(start: str, parts: tuple[str, ...]) -> Iterator[str]:
    """Paths that glob finds from `start`, and perhaps some that do not exist.

    glob passes over folders that cannot be read. A folder below `**` comes once: a link may lead back above it.
    """
    if not parts:
        yield start
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        rest = tuple(itertools.dropwhile(lambda part: part == "**", rest)) or ("*",)
        found = _folders(start)
    elif glob.escape(first) == first:
        found = iter([os.path.join(start, first)])
    else:
        found = (os.path.join(start, name) for name in fnmatch.filter(_names(start, first.startswith(".")), first))
    for path in found:
        yield from _expand(path, rest)


def _names(folder: str, hidden: bool) -> list[str]:
    """Names in `folder`, those with a dot before them only if `hidden`; none if it is no folder."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        _pass_if_absent(error)
        return []
    return names if hidden else [name for name in names if not name.startswith(".")]


def _folders(start: str) -> Iterator[str]:
    """`start` and all folders below it except hidden ones. Raises OSError for one that cannot be read."""
    seen = set()
    for folder, names, _ in os.walk(start, onerror=_pass_if_absent, followlinks=True):
        real = os.path.realpath(folder)
        names[:] = [] if real in seen else sorted(name for name in names if not name.startswith("."))
        if real not in seen:
            yield folder
        seen.add(real)


def _is_source(path: Path) -> bool:
    """Whether `path` is a file, or a link that leads nowhere."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        _pass_if_absent(error)
        return os.path.islink(path)  # unlike pathlib's, it takes a name of any length


def _pass_if_absent(error: OSError) -> None:
    """Raises `error` unless it says that there is no such file or folder."""
    if error.errno not in _NO_SUCH:
        raise error
