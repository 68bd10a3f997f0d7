"""Seconds from the command to the first finished step of the quickstart, corpus ready: python benchmarks/start_up.py"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.commands import BIN
from benchmarks.report import report, spread

REPEATS = 5


def seconds_to_first_step(directory: str) -> float:
    command = [BIN / "deepspeed", "--num_accelerators", "2", "launch/pretrain.py"]
    command += ["--config", "configs/quickstart.yaml", f"run.directory={directory}", "run.name=start_up"]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    for line in process.stdout:
        if line.startswith("step "):
            elapsed = time.perf_counter() - start
            # The whole group: a signal to the launcher alone leaves its training processes running.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return elapsed
    raise SystemExit("the quickstart ended before its first step; run `make quickstart` to see why")


def main() -> None:
    times = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as directory:
            times.append(seconds_to_first_step(directory))
    rows = [{"start": "quickstart, 2 processes", "s to step 1": spread(times)}]
    report("start_up", rows, f"start-up, {REPEATS} runs")


if __name__ == "__main__":
    main()
