"""The files of a run that other programs read: config.yaml, run.json, metrics.jsonl, ranks.jsonl, summary.json."""

import json
import math
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import yaml

from comera_dist.config.tree import Config
from comera_dist.errors import RunDirectoryError
from comera_dist.runtime.processes import Processes
from comera_dist.storage.files import write_whole
from comera_dist.storage.json_files import finite_json, read_json
from comera_dist.storage.lock import RunLock

PACKAGES = ("torch", "deepspeed", "opt_einsum", "sentencepiece", "safetensors", "numpy")
# Numbers that every record of a log has, and every summary of a finished run.
LOGS = {"metrics.jsonl": ("step", "tokens", "loss", "tokens_per_second", "params"), "ranks.jsonl": ("step",)}
SUMMARY = ("val_loss", "params", "dense_params", "compression", "tokens", "wall_seconds")


class RunDirectory:
    """`runs/<name>`; only the first process writes to it (checkpoints have a writer of their own)."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.plots = path / "plots"
        self.summary = path / "summary.json"
        self._lock = RunLock(path / "run.lock")

    @contextmanager
    def held(self, processes: Processes) -> Iterator[None]:
        """While entered, no other start of the run gets so far. Collective.

        RunDirectoryError on all processes, before anything is written, where another start is here or nothing can be
        written.
        """
        self._agree(processes, self._acquire)
        try:
            yield
        finally:
            self._lock.release()

    def still_held(self, processes: Processes) -> bool:
        """False where somebody has removed the directory: it is held anew and empty then. Collective.

        Raises RunDirectoryError where another start holds it now.
        """
        is_held = processes.from_first(processes.is_first and self._lock.is_held())
        if not is_held:
            self._agree(processes, self._acquire)
        return is_held

    def open(self, config: Config, num_processes: int, step: int) -> None:
        """Makes the folder and describes the run in it, and this start of it, which goes on from `step`."""
        self.plots.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        start, earlier = _this_start(num_processes), self.facts().get("starts")
        starts = [*(earlier if isinstance(earlier, list) else []), {"step": step, **_this_command(), **start}]
        self.note(**start, starts=starts)

    def note(self, **facts) -> None:
        """Adds facts to run.json."""
        write_whole(self.path / "run.json", finite_json(self.facts() | facts, indent=1))

    def facts(self) -> dict:
        facts = read_json(self.path / "run.json")
        return facts if isinstance(facts, dict) else {}

    def forget_after(self, step: int) -> None:
        """Drops lines of the logs that a killed run wrote after the checkpoint it now resumes from.

        Lines that are no records of a run stay in a file beside the log.
        """
        for name in LOGS:
            if (self.path / name).exists():
                records, foreign = self._split(name)
                if foreign:
                    with (self.path / f"{name}.foreign").open("ab") as file:
                        file.write(b"".join(foreign))
                kept = [record for record in records if record["step"] <= step]
                write_whole(self.path / name, "".join(finite_json(record) + "\n" for record in kept))

    def append(self, name: str, record: dict) -> None:
        """Raises OSError, and leaves whole lines, where the disk is full."""
        line, path = (finite_json(record) + "\n").encode(), self.path / name
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(line)
                if written < len(line):
                    file.write(line[written:])
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def read(self, name: str) -> list[dict]:
        """Records of a .jsonl file; what is none of a run, such as a line that a kill cut short, is left out."""
        return self._split(name)[0] if (self.path / name).exists() else []

    def finish(self, summary: dict) -> None:
        write_whole(self.summary, finite_json(summary, indent=1))

    def read_summary(self) -> dict | None:
        """What `finish` wrote; None where nothing did, where it is damaged, or where its loss is not finite."""
        summary = read_json(self.summary)
        return summary if isinstance(summary, dict) and _has_numbers(summary, SUMMARY) else None

    def _split(self, name: str) -> tuple[list[dict], list[bytes]]:
        """Records of a log and the lines that are none; a last line that was cut short is neither."""
        records, foreign = [], []
        for line in (self.path / name).read_bytes().splitlines(keepends=True):
            record = _parse(line)
            if isinstance(record, dict) and _has_numbers(record, LOGS[name]):
                records.append(record)
            elif line.endswith(b"\n"):
                foreign.append(line)
        return records, foreign

    def _acquire(self) -> str | None:
        """Why the run cannot be held, or None."""
        try:
            holder = self._lock.acquire()
        except OSError as error:
            return (
                f"{self.path} cannot be written ({error.strerror or error}); make room, or set run.directory to a "
                f"folder that this user may write to"
            )
        if holder is None:
            return None
        return f"{self.path} is already running, {holder}; wait for its end, stop it, or choose another run.name"

    def _agree(self, processes: Processes, find_problem) -> None:
        problem = processes.from_first(find_problem() if processes.is_first else None)
        if problem is not None:
            raise RunDirectoryError(problem)


def _parse(line: bytes):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _has_numbers(record: dict, names: tuple[str, ...]) -> bool:
    values = [record.get(name) for name in names]
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def _this_start(num_processes: int) -> dict:
    return {
        **_git_state(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "world_size": num_processes,
    }


def _this_command() -> dict:
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "command": shlex.join(sys.orig_argv),
    }


def _git_state() -> dict:
    """Hash of the code's commit and whether files that it knows differ from it; None where it is no clone."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"git": _git("rev-parse", "HEAD"), "git_dirty": None if changed is None else bool(changed)}


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
