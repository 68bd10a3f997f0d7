"""Numbers on the command line, and output of commands whose reader goes away."""

import argparse
import os
import subprocess
import sys

import pytest
from support import ROOT

from comera_dist.commands.arguments import not_negative, positive


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("1e6", 10**6), ("2.5e3", 2500), ("1e18", 10**18)])
def test_a_whole_number_is_read_in_either_notation(text, number):
    assert positive(text) == not_negative(text) == number


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((text, ValueError) for text in ("1.5", "two", "nan", "")),
        *((text, argparse.ArgumentTypeError) for text in ("0", "1e999999999", "-1e999999999", "inf")),
    ],
)
def test_other_numbers_are_refused(text, error):
    with pytest.raises(error):
        positive(text)


@pytest.mark.parametrize(
    "command",
    [
        ["estimate", "--config", "quickstart", "--vocab-size", "500", "--json"],
        ["config", "quickstart"],
    ],
)
def test_a_reader_that_closes_its_end_is_no_error(command):
    read, write = os.pipe()
    os.close(read)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(ROOT / f"launch/{command[0]}.py"), *command[1:]]
    done = subprocess.run(script, stdout=write, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
