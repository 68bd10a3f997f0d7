"""The number of a row in its file."""

import re

_LAST_NUMBER = re.compile(r"\d+$")


def row_number(where: str) -> int:
    """The number at the end of a row's place, such as 7 of "a.csv: row 7". A header counts as a row."""
    found = _LAST_NUMBER.search(where)
    assert found, f"{where} ends with a number"
    return int(found[0])
