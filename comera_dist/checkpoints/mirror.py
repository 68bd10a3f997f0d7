"""Copies of a run's checkpoints and logs in a remote folder, such as s3://bucket/runs, through fsspec.

Errors of the remote storage do not end a run: its own disk has all that it needs.
"""

import errno
import json
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec

from comera_dist.checkpoints.background import in_background
from comera_dist.checkpoints.disk import published, step_of
from comera_dist.checkpoints.manifest import MANIFEST, Damage, read_manifest
from comera_dist.checkpoints.prune import Kept, partial_of
from comera_dist.checkpoints.remote import RemoteRun
from comera_dist.errors import CheckpointError, ConfigError, DiskError, first_line
from comera_dist.storage.run_directory import LOGS, RUN_FILE, SUMMARY_FILE

FILES = ("config.yaml", RUN_FILE, *LOGS, SUMMARY_FILE)
# Errors of storage or disk that a person must mend; others, of whatever class, are often gone later.
LASTING = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT, errno.EROFS}

# One for each remote folder: a rewind opens the mirror anew while a copy of the one before it may still go on.
_COPYING: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


class Mirror:
    """The copy in the folder `url` of the run in the directory `local`, with the checkpoints that are to be `kept`.

    ConfigError if no package serves such a URL, CheckpointError if the storage fails.
    """

    def __init__(self, url: str, local: Path, kept: Kept):
        folder = f"{url.rstrip('/')}/{local.name}"
        try:
            self._remote = RemoteRun(*fsspec.core.url_to_fs(folder))
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"checkpoint.mirror = {url} cannot be opened ({first_line(error)}); install the package that it names, "
                f"or give a URL that fsspec knows, such as s3://bucket/runs or file:///mnt/runs"
            ) from error
        except OSError as error:  # some storage is called at once
            raise _unreadable(url, error) from error
        self._url, self._local, self._kept, self._turn = url, local, kept, _COPYING[folder]
        self._copy: Future[None] | None = None
        self._copied: Path | None = None  # the checkpoint of `_copy`
        self._next: Path | None = None
        self._permanent: set[str] = set()  # checkpoints that stay for good and are known to be there
        self._sent: Any = None  # the first start in the run.json that was copied last
        self._has_complained = False

    def send(self, checkpoint: Path) -> None:
        """Begins to copy a published checkpoint and the logs; if a copy is under way, `tick` begins this one later.

        A later checkpoint takes the place of one that waits. Those that stay for good are copied nevertheless.
        """
        self._next = checkpoint
        self._permanent.discard(checkpoint.name)  # its step may have been saved again
        self.tick()

    def tick(self) -> None:
        """Begins the copy that waits, if no other is under way."""
        if self._next is not None and (self._copy is None or self._copy.done()):
            checkpoint, self._copied, self._next = self._next, self._next, None
            self._copy = in_background(lambda: self._or_complain(checkpoint))
        is_over = self._copy is None or self._copy.done()
        waiting = (None if is_over else self._copied, self._next)
        self._kept.copied = tuple(step_of(folder) for folder in waiting if folder is not None)

    def close(self, seconds: float) -> None:
        """Copies what is left and the final logs. Returns after about `seconds` at the latest."""
        if self._copy is not None:
            wait([self._copy], seconds / 2)
        self._next = self._next or next(iter(published(self._local / "checkpoints")), None)
        self.tick()
        reason = None
        if self._next is not None or (self._copy is not None and not wait([self._copy], seconds / 2).done):
            reason = f"it took longer than {seconds:g} s"
        elif self._has_complained:
            reason = "the last checkpoint was not copied"
        if reason is not None:
            print(f"The copy in {self._url} is not complete: {reason}; the next start goes on with it.", flush=True)

    def fetch(self) -> Iterator[str]:
        """Copies logs and checkpoints back into a directory without checkpoints; yields the name of each file after it.

        The checkpoints are the newest ones and the best one. Logs come first, and checkpoints get their names when all
        files are here: a start that finds a checkpoint does not fetch, so it would go on without the logs.
        Raises CheckpointError if the remote storage or the disk fails, DiskError if that may pass.
        """
        folder = self._local / "checkpoints"
        try:
            for name in FILES:
                if self._remote.has_file(name) and not (self._local / name).exists():
                    self._remote.get(name, self._local / name)
                    yield name
            steps = self._wanted()
            for step in steps:
                partial = partial_of(folder / step)
                shutil.rmtree(partial, ignore_errors=True)  # of a start that was killed
                partial.mkdir(parents=True)
                for name in self._remote.names(step):
                    self._remote.get(f"checkpoints/{step}/{name}", partial / name)
                    yield name
            for step in steps:
                os.rename(partial_of(folder / step), folder / step)
        except Exception as error:  # of any class: packages for remote storage have their own
            raise _unreadable(self._url, error) from error

    def _wanted(self) -> list[str]:
        """The newest remote checkpoints, and the best one of the run as the newest one knows it."""
        steps = self._remote.steps()
        newest = list(islice(filter(self._looks_whole, steps), self._kept.newest))
        if not newest:
            return []
        record = json.loads(self._remote.manifest(newest[0]) or b"{}").get("run", {})
        best = (record.get("stop_early") or {}).get("best_step")  # absent in earlier versions
        return newest + [step for step in steps if step_of(Path(step)) == best and step not in newest]

    def _looks_whole(self, step: str) -> bool:
        """Whether the remote manifest of a step is undamaged: not all storage writes a file whole or not at all."""
        try:
            read_manifest(self._remote.manifest(step) or b"")
        except Damage as damage:
            print(f"The copy of {step} in {self._url} is passed over: {damage}.", flush=True)
            return False
        return True

    def _or_complain(self, checkpoint: Path) -> None:
        try:
            with self._turn:
                self._send(checkpoint)
            self._has_complained = False
        except Exception as error:  # of any class: the run is worth more than its copy
            if not self._has_complained:
                print(
                    f"{checkpoint.name} was not copied to {self._url} ({first_line(error)}); the run goes on, and the "
                    f"next checkpoint is tried again.",
                    flush=True,
                )
            self._has_complained = True

    def _send(self, checkpoint: Path) -> None:
        self._check_own()
        is_here = self._has(checkpoint)
        if not is_here:
            self._put_shards(checkpoint)
        for name in FILES:
            if (self._local / name).exists():
                self._remote.put_file(self._local / name)
            elif name == SUMMARY_FILE:  # of a run that was finished and is longer now
                self._remote.remove_file(name)
        self._sent = self._own_start
        if not is_here:
            self._remote.put_manifest(checkpoint)
        for folder in published(self._local / "checkpoints"):
            if self._kept.is_permanent(step_of(folder)) and folder.name not in self._permanent:
                if not self._has(folder):
                    self._put_shards(folder)
                    self._remote.put_manifest(folder)
                self._permanent.add(folder.name)
        self._prune()

    @property
    def _own_start(self) -> Any:
        file = self._local / RUN_FILE
        return _first_start(file.read_bytes() if file.exists() else None)

    def _check_own(self) -> None:
        """Raises CheckpointError if the remote checkpoints are another run's, which `_prune` would remove.

        Also those of this run's name from before its disk was lost: a start that did not find them, e.g. because a
        folder was not mounted, has begun anew.
        """
        there, here = _first_start(self._remote.read(RUN_FILE)), self._own_start
        if there in (None, here, self._sent):
            return
        if self._remote.steps() and not any(map(self._has, published(self._local / "checkpoints"))):
            raise CheckpointError(
                f"it holds checkpoints of another run of this name, begun {there['time']} on host {there['host']}; "
                f"to go on from them, stop this run and remove {self._local}, or else remove them, "
                f"or set checkpoint.mirror to another folder"
            )

    def _put_shards(self, checkpoint: Path) -> None:
        """Copies them all or, where that fails, leaves none: the part would take the room of the next copy."""
        try:
            self._remote.put_shards(checkpoint)
        except Exception:
            with suppress(Exception):
                self._remote.remove(checkpoint.name)
            raise

    def _has(self, checkpoint: Path) -> bool:
        """Whether the remote checkpoint of a step is this one. A step that was saved again may have other shards."""
        return self._remote.manifest(checkpoint.name) == (checkpoint / MANIFEST).read_bytes()

    def _prune(self) -> None:
        """Removes the remote checkpoints that are not to be kept, and the parts that killed copies have left.

        Those beyond the newest local one are of a course that the run has left: somebody went back to an earlier
        checkpoint. A start elsewhere would go on from them.
        """
        newest, steps = step_of(published(self._local / "checkpoints")[0]), self._remote.steps()
        while step_of(Path(steps[0])) > newest:
            print(f"{steps[0]} in {self._url} is of a course that the run has left, and is removed.", flush=True)
            self._remote.remove(steps.pop(0))
        for step in steps[self._kept.newest :]:
            if not self._kept.is_permanent(step_of(Path(step))):
                self._remote.remove(step)
        for step in self._remote.folders():
            if step not in steps and step_of(Path(step)) < step_of(Path(steps[0])):
                self._remote.remove(step)


def _first_start(run_file: bytes | None) -> Any:
    """The record of a run's first start in its run.json; None if it is not told, as by half of a file."""
    try:
        return json.loads(run_file or b"")["starts"][0]
    except (ValueError, LookupError, TypeError):
        return None


def _unreadable(url: str, error: Exception) -> CheckpointError:
    lasts = isinstance(error, PermissionError | FileNotFoundError) or getattr(error, "errno", None) in LASTING
    return (CheckpointError if lasts else DiskError)(
        f"the copy of the run in {url} cannot be read ({first_line(error)}); mend that and start the same command "
        f"again, or set checkpoint.mirror=null to start without it"
    )
