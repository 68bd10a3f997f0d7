"""Processes of a test, forked from a server that has imported everything, as imports take most of a short test."""

import json
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from support import ROOT, environment, free_port

PATIENCE = 5.0  # seconds in which others may tell what they know of a process that failed


class Ended(NamedTuple):
    """Exit status of a process (None: it was killed after the timeout), its standard output and standard error."""

    status: int | None
    out: str
    err: str


def run_processes(count: int, scenario: str, timeout: float = 240, **arguments) -> list:
    """Calls `scenario` of distributed/scenarios on `count` processes; returns their results in order of index."""
    ended = end_processes(count, scenario, timeout, **arguments)
    for status, out, err in ended:
        assert status == 0, f"{scenario} failed with {status}:\n{out}\n{err[-4000:]}"
    return [json.loads(one.out.splitlines()[-1]) for one in ended]


def end_processes(count: int, scenario: str, timeout: float = 240, **arguments) -> list[Ended]:
    """Like run_processes, for scenarios that may end their processes: returns how each ended."""
    return end_each([(place, None) for place in _places(count)], scenario, timeout, **arguments)


def end_each(starts: list[tuple[dict, Callable | None]], scenario: str, timeout: float = 240, **arguments):
    """Like end_processes, with the variables of each process, and a function that it calls first."""
    started = Started([(of_one, partial(_scenario, scenario, arguments, begin)) for of_one, begin in starts])
    return started.ended(timeout, PATIENCE)


def start_processes(count: int, scenario: str, arguments: dict) -> "Started":
    """`count` processes that have begun with `scenario` of distributed/scenarios."""
    return Started([(place, partial(_scenario, scenario, arguments)) for place in _places(count)])


def run_program(words: list[str], folder: Path, count: int | None = None, timeout: float = 240, **variables) -> Ended:
    """Ends a Python program of `folder`, with its arguments, in one process or in `count` that are told their places.

    Tells the end of the first process that failed, or else of process 0.
    """
    places = _places(count) if count else [{}]
    started = Started([(variables | place, partial(_program, words, folder)) for place in places])
    ended = started.ended(timeout, PATIENCE)
    return next((one for one in ended if one.status != 0), ended[0])


class Started:
    """Processes that have begun: the variables of each, and the function that it calls."""

    def __init__(self, starts: list[tuple[dict[str, str], Callable[[], None]]]):
        self._folder = tempfile.TemporaryDirectory()
        self.workers = [
            _server().Process(target=_begin, args=(environment(**variables), self._place(i), body))
            for i, (variables, body) in enumerate(starts)
        ]
        for worker in self.workers:
            worker.start()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    @property
    def launcher_pids(self) -> list[int]:
        """There is no launcher."""
        return []

    @property
    def are_alive(self) -> bool:
        """Whether some process has not ended."""
        return bool(self._running())

    def ended(self, timeout: float, patience: float = math.inf) -> list[Ended]:
        """How each process ended. One that has not after about `timeout` seconds is killed.

        When one has failed, the others are killed after `patience` seconds, as a launcher does: they may wait for it
        for ever.
        """
        until = time.monotonic() + timeout
        self._join(until)
        if any(worker.exitcode for worker in self.workers):
            self._join(min(until, time.monotonic() + patience), in_spite_of_failures=True)
            if time.monotonic() < until:
                for worker in self._running():
                    worker.kill()
                    worker.join()
        ended = [Ended(worker.exitcode, *_read(self._place(i))) for i, worker in enumerate(self.workers)]
        for worker in self.workers:
            if worker.exitcode is None:
                worker.kill()
        self._folder.cleanup()
        return ended

    def _join(self, until: float, in_spite_of_failures: bool = False) -> None:
        """Waits for the end of all processes, or of the first that fails. The exit status has a single reader."""
        while (running := self._running()) and (left := until - time.monotonic()) > 0:
            if not in_spite_of_failures and any(worker.exitcode for worker in self.workers):
                return
            multiprocessing.connection.wait([worker.sentinel for worker in running], left)

    def _running(self) -> list:
        return [worker for worker in self.workers if worker.exitcode is None]

    def _place(self, index: int) -> Path:
        return Path(self._folder.name) / str(index)


def _places(count: int) -> list[dict[str, str]]:
    """The variables of `count` processes on this host."""
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [shared | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(count)]


@cache
def _server() -> multiprocessing.context.BaseContext:
    """Forks processes from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    folders = [str(ROOT / "tests/distributed"), str(ROOT / "tests"), str(ROOT)]
    sys.path += [folder for folder in folders if folder not in sys.path]
    context.set_forkserver_preload(["preloaded"])
    before = dict(os.environ)
    # Some versions of Python do not pass sys.path on to the server, and a failed import there is silent.
    os.environ.update(environment(PYTHONPATH=os.pathsep.join(folders)))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _begin(variables: dict[str, str], place: Path, body: Callable[[], None]) -> None:
    """Calls `body` in a new process, with its output in PLACE.out and its errors in PLACE.err."""
    for stream, suffix in ((sys.stdout, ".out"), (sys.stderr, ".err")):
        os.dup2(os.open(f"{place}{suffix}", os.O_WRONLY | os.O_CREAT), stream.fileno())
    os.environ.clear()
    os.environ.update(variables)
    body()


def _scenario(scenario: str, arguments: dict, begin: Callable[[], None] | None = None) -> None:
    """Ends the process with a scenario, whose result is the last line of its output."""
    if begin is not None:
        begin()
    from worker import work

    work(scenario, arguments)


def _program(words: list[str], folder: Path) -> None:
    os.chdir(folder)
    sys.argv = words
    sys.path.insert(0, str((folder / words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def _read(place: Path) -> tuple[str, str]:
    files = (Path(f"{place}{suffix}") for suffix in (".out", ".err"))
    return tuple(file.read_text() if file.exists() else "" for file in files)
