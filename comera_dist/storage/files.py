"""Whole files, of which a reader sees the old content or the new one and never a part, and JSON in them."""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

SEEN_SECONDS = 10.0  # chosen: network file systems may show a new file after several seconds


def write_whole(path: Path, content: str | bytes, flushed: bool = False) -> None:
    """Replaces a file in one move. If `flushed`, the new content survives a loss of power once this returns."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    if flushed:
        flush(partial)
    os.replace(partial, path)
    if flushed:
        flush(path.parent)


def flush(path: Path) -> None:
    """Forces a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def appears(path: Path) -> bool:
    """Whether a file of another process is there, or comes within SEEN_SECONDS."""
    until = time.monotonic() + SEEN_SECONDS
    while not os.path.exists(path):  # Path.exists raises for a folder of another user
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def finite_json(value: Any, indent: int | None = None) -> str:
    """`value` as JSON with null for NaN and infinities, which Python would write although JSON does not have them."""
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def is_finite_number(value: Any) -> bool:
    """Whether a value of a JSON file is a number that a float holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # math.isfinite fails for larger integers


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
