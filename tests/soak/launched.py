"""Runs that DeepSpeed's launcher starts, so that the launcher itself can be attacked."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from forked import Ended
from support import ROOT, environment, free_port

SCRIPT = ROOT / "tests/soak/marked.py"
BEGIN_SECONDS = 60.0  # chosen: several times as long as the launcher takes to start its processes


class Launched:
    """Processes of a run and their launcher; otherwise like `forked.Started`, which has no launcher."""

    def __init__(self, count: int, overrides: list[str], marks: Path):
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open until the end of the processes)
        launcher = [str(Path(sys.executable).parent / "deepspeed"), "--num_accelerators", str(count)]
        script = [str(SCRIPT), "--config", str(ROOT / "tests/defaults.yaml"), *overrides]
        self._launcher = psutil.Popen(
            [*launcher, "--master_port", free_port(), *script],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment(MARKS=str(marks)),
        )
        self._workers = self._found(count)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    @property
    def launcher_pids(self) -> list[int]:
        """The command `deepspeed`, and the process of this host that it has started."""
        below = self._launcher.children(recursive=True) if self._launcher.is_running() else []
        return [self._launcher.pid, *(one.pid for one in below if _is_launcher(one))]

    @property
    def are_alive(self) -> bool:
        return any(worker.is_running() for worker in self._workers)

    def ended(self, timeout: float) -> list[Ended]:
        """How the launcher ended, which tells one status for all. The status is None if a process was left behind."""
        _, left = psutil.wait_procs([*self._workers, self._launcher], timeout)
        for process in left:
            process.kill()
        self._output.seek(0)
        return [Ended(None if left else self._launcher.wait(), self._output.read(), "")]

    def _found(self, count: int) -> list[psutil.Process]:
        """The processes of the run, once the launcher has started them all."""
        until = time.monotonic() + BEGIN_SECONDS
        while time.monotonic() < until and self._launcher.poll() is None:
            workers = list(filter(_is_worker, self._launcher.children(recursive=True)))
            if len(workers) == count:
                return workers
            time.sleep(0.01)
        raise AssertionError("the launcher did not start its processes")


def _is_worker(process: psutil.Process) -> bool:
    return any(word.startswith("--local_rank=") for word in _command(process))


def _is_launcher(process: psutil.Process) -> bool:
    return "deepspeed.launcher.launch" in _command(process)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
