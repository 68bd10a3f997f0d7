"""Output of commands whose reader goes away."""

import os
import subprocess
import sys

import pytest
from support import ROOT


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
