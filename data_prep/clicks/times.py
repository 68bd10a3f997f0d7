"""Times of a click log as seconds since 1970 in UTC: numbers are Unix times, words are ISO 8601.

2023-11-14, with hours and minutes after a T or a space, seconds and their fraction, and an offset from UTC or a Z. A
time without an offset is taken as UTC.

Shapes: N rows of a block.
"""

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

_OFFSET = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
TIME = re.compile(rf"^\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?{_OFFSET}?)?$".encode(), re.ASCII)
_WITH_OFFSET = rf":\d\d(?:\.\d+)?{_OFFSET}$"
_MICROSECONDS = 1_000_000
# Parts of a time. 1 January 1970 was a Thursday; Monday is 0.
TIME_PARTS = {
    ".seconds": lambda seconds_N: seconds_N,
    ".hour": lambda seconds_N: seconds_N // 3600 % 24,
    ".weekday": lambda seconds_N: (seconds_N // 86400 + 3) % 7,
}


def to_seconds(words_N: pa.Array) -> NDArray[np.float64]:
    """(N,) of ISO 8601 times, NaN if missing, of another form, or not a day of the calendar."""
    is_time_N = compute.match_substring_regex(words_N.cast(pa.binary()), TIME.pattern.decode())
    times_N = compute.if_else(is_time_N, words_N, pa.scalar(None, words_N.type))
    times_N = compute.replace_substring_regex(times_N, r"(\.\d{6})\d+", r"\1")  # microseconds are exact enough
    has_offset_N = compute.match_substring_regex(times_N, _WITH_OFFSET)
    seconds_N = np.full(len(words_N), np.nan)
    for offset, kind in ((False, pa.timestamp("us")), (True, pa.timestamp("us", "UTC"))):
        chosen_N = compute.fill_null(compute.equal(has_offset_N, offset), False)
        seconds_N[chosen_N.to_numpy(zero_copy_only=False)] = _cast(times_N.filter(chosen_N), kind)
    return seconds_N


def _cast(times_N: pa.Array, kind: pa.DataType) -> NDArray[np.float64]:
    try:
        found_N = times_N.cast(kind)
    except pa.ArrowInvalid:
        found_N = pa.array([_cast_one(word, kind) for word in times_N], type=kind)
    microseconds_N = found_N.cast(pa.int64())
    return microseconds_N.to_numpy(zero_copy_only=False).astype(np.float64) / _MICROSECONDS


def _cast_one(word: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    try:
        return word.cast(kind)
    except pa.ArrowInvalid:
        return None
