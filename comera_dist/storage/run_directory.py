"""The files of a run that other programs read: config.yaml, run.json, summary.json and its logs."""

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from comera_dist.config.secrets import redacted_command
from comera_dist.config.tree import Config
from comera_dist.errors import RunDirectoryError
from comera_dist.runtime.software import package_versions
from comera_dist.runtime.together import together
from comera_dist.storage.files import appears, finite_json, flush, is_finite_number, read_json, write_whole
from comera_dist.storage.lock import RunLock

if TYPE_CHECKING:
    from comera_dist.runtime.processes import Processes

Record = dict[str, Any]  # a JSON object

# Keys with finite numbers in every record of a log, and in every summary of a finished run.
LOGS = {
    "metrics.jsonl": ("step", "tokens", "loss", "tokens_per_second", "params"),
    "ranks.jsonl": ("step",),
    "norms.jsonl": ("step",),
}
RUN_FILE = "run.json"
SUMMARY_FILE = "summary.json"
LOCK_FILE = "run.lock"
SUMMARY = ("val_loss", "params", "dense_params", "compression", "tokens", "wall_seconds")


class RunDirectory:
    """`runs/<name>`; only the first process writes to it. Checkpoints are written by `checkpoints.write.Saver`."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.plots = path / "plots"
        self.summary = path / SUMMARY_FILE
        self._lock = RunLock(path / LOCK_FILE)

    @contextmanager
    def held(self, processes: "Processes") -> Iterator[None]:
        """Keeps other starts of the run out while entered. Collective.

        Raises RunDirectoryError on all processes, before anything is written, if another start holds the run, or if the
        directory cannot be written or is not there on all processes.
        """
        together(lambda: self._acquire(processes), processes)
        try:
            together(lambda: self._see(processes), processes)
            yield
        finally:
            self._lock.release()

    def holder(self) -> str | None:
        """The process that trains the run at present in words; None if there is none."""
        return self._lock.holder()

    def still_held(self, processes: "Processes") -> bool:
        """False if the directory was removed; it is then made and held anew, and is empty. Collective.

        Raises RunDirectoryError if another start holds it now.
        """
        is_held: bool = processes.from_first(processes.is_first and self._lock.is_held())
        if not is_held:
            together(lambda: self._acquire(processes), processes)
        return is_held

    def open(self, config: Config, num_processes: int, step: int) -> None:
        """Makes the folder and describes in it the run and this start, which resumes after `step`."""
        self.plots.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        environment = _environment(num_processes)
        command = {
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "command": shlex.join(redacted_command(sys.orig_argv)),
        }
        earlier = self.facts().get("starts")
        starts = [*(earlier if isinstance(earlier, list) else []), {"step": step, **command, **environment}]
        self.note(**environment, starts=starts)

    def note(self, **facts: Any) -> None:
        """Adds facts to run.json. Raises OSError if that cannot be read now: its earlier facts would be lost."""
        with suppress(FileNotFoundError):
            (self.path / RUN_FILE).read_bytes()
        write_whole(self.path / RUN_FILE, finite_json(self.facts() | facts, indent=1), flushed=True)

    def facts(self) -> Record:
        """The content of run.json; empty if it is missing or damaged."""
        facts = read_json(self.path / RUN_FILE)
        return facts if isinstance(facts, dict) else {}

    def rewinds(self) -> list[Record]:
        """The rewinds in run.json (see `run.bad_steps.Rewind`), oldest first."""
        rewinds = self.facts().get("rewinds")
        return rewinds if isinstance(rewinds, list) else []

    def note_saving(self) -> None:
        """Notes in run.json that the run has a checkpoint, unless it says so or cannot be written now."""
        with suppress(OSError):
            if not self.has_saved:
                self.note(has_saved=True)

    @property
    def has_saved(self) -> bool:
        """Whether the run once had a checkpoint. Earlier versions did not note it."""
        return self.facts().get("has_saved") is True

    def forget_after(self, step: int) -> None:
        """Drops records that a killed run logged after the checkpoint of `step`, from which it now resumes.

        Lines that are not records of a run are moved to a file beside the log.
        """
        for name in LOGS:
            if (self.path / name).exists():
                self._forget(name, step)

    def _forget(self, name: str, step: int) -> None:
        partial, foreign = self.path / f".{name}.tmp", []
        with partial.open("wb") as kept:
            for line, record in self._lines(name):  # not all at once: the norms of a long run take gigabytes
                if record is None:
                    foreign.append(line)
                elif record["step"] <= step:
                    kept.write(line)
        if foreign:
            with (self.path / f"{name}.foreign").open("ab") as file:
                file.write(b"".join(foreign))
        flush(partial)
        os.replace(partial, self.path / name)

    @property
    def logs(self) -> list[Path]:
        """The files of the logs, which need not exist yet."""
        return [self.path / name for name in LOGS]

    def append(self, name: str, record: Record) -> None:
        """Adds a record to a log. If the disk is full, raises OSError and leaves whole lines."""
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

    def records(self, name: str) -> Iterator[Record]:
        """Records of a log, without lines that are not records, such as a last line that a kill cut short."""
        if (self.path / name).exists():
            yield from (record for _, record in self._lines(name) if record is not None)

    def read(self, name: str) -> list[Record]:
        """All `records` of a log at once; those of norms.jsonl may take more than the memory."""
        return list(self.records(name))

    def finish(self, summary: Record) -> None:
        write_whole(self.summary, finite_json(summary, indent=1))

    def unfinish(self) -> None:
        """Removes the summary of a run that goes on: other programs take it for the sign of a finished one."""
        self.summary.unlink(missing_ok=True)

    def read_summary(self) -> Record | None:
        """The summary that `finish` wrote; None if there is none, or if it is damaged or lacks a finite number."""
        summary = read_json(self.summary)
        return summary if isinstance(summary, dict) and _has_numbers(summary, SUMMARY) else None

    def _lines(self, name: str) -> Iterator[tuple[bytes, Record | None]]:
        """The whole lines of a log, each with its record; None for a line that is no record of a run.

        A last line that was cut short is left out.
        """
        with (self.path / name).open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None
                if isinstance(record, dict) and _has_numbers(record, LOGS[name]):
                    yield line.removesuffix(b"\n") + b"\n", record
                elif line.endswith(b"\n"):
                    yield line, None

    def _acquire(self, processes: "Processes") -> None:
        """The first process takes the lock. Raises RunDirectoryError."""
        try:
            holder = self._lock.acquire() if processes.is_first else None
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path} cannot be written ({error.strerror or error}); make room, or set run.directory to a "
                f"folder that this user may write to"
            ) from error
        if holder is not None:
            raise RunDirectoryError(
                f"{self.path} is already running, {holder}; wait for its end, stop it, or choose another run.name"
            )

    def _see(self, processes: "Processes") -> None:
        """Raises RunDirectoryError if this process does not see the lock of the first one."""
        if not appears(self.path / LOCK_FILE):
            raise RunDirectoryError(
                f"{self.path} of process 0 is not there on {processes.here}, expected one folder for all hosts; set "
                f"run.directory to a folder that all hosts share, or mount it there"
            )


def _has_numbers(record: Record, names: tuple[str, ...]) -> bool:
    return all(is_finite_number(record.get(name)) for name in names)


def _environment(num_processes: int) -> Record:
    """Code and packages of a start. `git_dirty`: whether files differ from the commit `git`; both None if no clone."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "git": _git("rev-parse", "HEAD"),
        "git_dirty": None if changed is None else bool(changed),
        "python": platform.python_version(),
        "versions": package_versions(),
        "world_size": num_processes,
    }


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
