"""Writing of whole files: a reader sees the old content or the new one, and never a part of it."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes, flushed: bool = False) -> None:
    """Replaces a file in one move. With `flushed` the new content survives a loss of power from here on."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_bytes(_bytes(content))
    if flushed:
        flush(partial)
    os.replace(partial, path)
    if flushed:
        flush(path.parent)


def write_flushed(path: Path, content: str | bytes) -> None:
    """Writes a file in place and forces it to the disk: for a folder that is published as a whole later."""
    path.write_bytes(_bytes(content))
    flush(path)


def flush(path: Path) -> None:
    """Forces a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
