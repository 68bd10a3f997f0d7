"""JSON on the disk: written so that every reader takes it, read whatever somebody has made of the file."""

import json
import math
from pathlib import Path
from typing import Any


def finite_json(thing: Any, indent: int | None = None) -> str:
    """`thing` as JSON, with null in place of NaN and infinities, which Python would write and JSON does not have."""
    return json.dumps(_finite(thing), allow_nan=False, indent=indent)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def _finite(thing: Any) -> Any:
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    if isinstance(thing, dict):
        return {key: _finite(value) for key, value in thing.items()}
    return [_finite(part) for part in thing] if isinstance(thing, list | tuple) else thing
