"""Commands that a benchmark starts in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent  # of deepspeed and torchrun


def output_of(command: list, threads: int = 1) -> str:
    """The standard output of a command, whose processes have `threads` threads each. SystemExit if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def result_of(command: list, threads: int = 1) -> str:
    """The last line that a command prints. SystemExit if it fails."""
    return output_of(command, threads).splitlines()[-1]
