"""The disk of the runs: a checkpoint must be written, flushed, renamed, and seen by all processes."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from comera_dist.doctor.finding import Finding, Grade
from comera_dist.runtime.processes import Processes
from comera_dist.storage.files import appears, flush, write_whole
from comera_dist.storage.lock import RunLock

BYTES = 64 << 20  # chosen: large enough for a speed, small enough for a second on slow disks
LEAST_FREE = 1 << 30  # chosen: several checkpoints of a small model


def disk(folder: Path, processes: Processes) -> list[Finding]:
    """Findings about `folder`, in which runs are made. Collective: all must see the files of the first process."""
    trial = processes.from_first(folder / f".doctor-{os.getpid()}")
    found = processes.from_first(_tried(folder, lambda: _written(trial)) if processes.is_first else [])
    if all(finding.grade is Grade.FINE for finding in found):
        found.append(_seen(trial / "whole", processes))
        if processes.is_first:
            found += _tried(folder, lambda: [_locked(trial / "run.lock"), _free(folder)])
    if processes.is_first:
        shutil.rmtree(trial, ignore_errors=True)
    return found


def _tried(folder: Path, check: Callable[[], list[Finding]]) -> list[Finding]:
    """The findings of a check, or that the disk fails."""
    try:
        return check()
    except OSError as error:
        remedy = "name a folder that can be written with run.directory"
        return [Finding("disk", f"{folder}: {error.strerror or error}", Grade.BROKEN, remedy)]


def _written(trial: Path) -> list[Finding]:
    trial.mkdir(parents=True)
    started = time.perf_counter()
    part = trial / "part"
    part.write_bytes(os.urandom(1 << 20) * (BYTES >> 20))
    flush(part)
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    write_whole(trial / "whole", b"1", flushed=True)
    renamed = time.perf_counter() - started
    return [
        Finding("disk, write", f"{BYTES / seconds / 1e6:,.0f} MB/s, flushed"),
        Finding("disk, rename", f"{1000 * renamed:.1f} ms, flushed"),
    ]


def _seen(file: Path, processes: Processes) -> Finding:
    """Whether all processes see a file that the first one wrote. Collective."""
    processes.barrier()
    blind = [index for index, sees in enumerate(processes.gather(appears(file))) if not sees]
    if not blind:
        return Finding("disk, shared", f"{processes.count} process(es) see the same files")
    return Finding(
        "disk, shared",
        f"processes {', '.join(map(str, blind))} do not see a file of process 0",
        Grade.BROKEN,
        "name a folder on a disk that all hosts share with run.directory",
    )


def _locked(file: Path) -> Finding:
    first, second = RunLock(file), RunLock(file)
    is_refused = first.acquire() is None and second.acquire() is not None
    first.release()
    second.release()
    if is_refused:
        return Finding("disk, lock", "a second start of a run is refused")
    return Finding("disk, lock", "this file system has no locks", Grade.DOUBTFUL, "never start a run twice at a time")


def _free(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:,.1f} GiB free"
    if free < LEAST_FREE:
        return Finding("disk, room", found, Grade.DOUBTFUL, "make room for checkpoints")
    return Finding("disk, room", found)
