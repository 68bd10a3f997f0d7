"""Runs tests of Triton kernels on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, environment


def run_interpreted(file: str) -> None:
    """Calls the functions `interpreted_*` of a test file in a process of its own, where Triton interprets kernels.

    Triton looks at TRITON_INTERPRET when it is imported, and other tests of this process may have imported it.
    """
    pytest.importorskip("triton", minversion="3.7", reason="older interpreters of Triton fail with recent numpy")
    options = ["-q", "-p", "no:cacheprovider", "-o", "python_functions=interpreted_*"]
    command = [sys.executable, "-m", "pytest", *options, str(Path(file).relative_to(ROOT))]
    result = subprocess.run(command, cwd=ROOT, env=environment(TRITON_INTERPRET="1"), capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
