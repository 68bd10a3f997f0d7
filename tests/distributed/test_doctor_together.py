"""The doctor on two processes."""

import pytest
from forked import run_processes

pytestmark = pytest.mark.distributed


def test_two_processes_are_well(tmp_path):
    first, second = run_processes(2, "doctor", directory=str(tmp_path))
    assert {check for check, _ in first} >= {"versions", "clocks", "all-reduce", "disk, shared", "hosts"}
    assert all(grade == "ok" for _, grade in [*first, *second])
