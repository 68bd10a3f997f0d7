"""JSON that every reader takes: Python would write NaN and Infinity, which are none."""

import json
import math


def finite_json(thing, indent: int | None = None) -> str:
    """`thing` as JSON, null in place of a number that is not finite."""
    return json.dumps(_finite(thing), allow_nan=False, indent=indent)


def _finite(thing):
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    if isinstance(thing, dict):
        return {key: _finite(value) for key, value in thing.items()}
    return [_finite(part) for part in thing] if isinstance(thing, list | tuple) else thing
