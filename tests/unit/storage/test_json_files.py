"""What is written as JSON can be read by any reader of JSON."""

import json
import math

from comera_dist.storage.json_files import finite_json


def test_numbers_that_are_not_finite_are_null_and_nothing_else_changes():
    record = {
        "loss": math.nan,
        "all": [1.5, -math.inf, (math.inf, 2)],
        "name": "NaN",
        "none": None,
        "yes": True,
        "n": 3,
    }
    text = finite_json(record, indent=1)
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == {
        **record, "loss": None, "all": [1.5, None, [None, 2]]}  # fmt: skip
    assert json.loads(finite_json(record)) == json.loads(text)
