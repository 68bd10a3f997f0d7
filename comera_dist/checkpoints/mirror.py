"""Copies of a run's checkpoints and logs in a remote folder, such as s3://bucket/runs, through fsspec.

The remote folder has the layout of the run's directory. A checkpoint's manifest is copied last, so a folder without one
is not a checkpoint. Errors of the remote storage do not end a run: its own disk has all that it needs.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import fsspec

from comera_dist.checkpoints.background import in_background
from comera_dist.checkpoints.disk import FOLDER, published, step_of
from comera_dist.checkpoints.manifest import MANIFEST
from comera_dist.checkpoints.prune import Kept, partial_of
from comera_dist.errors import CheckpointError, ConfigError, first_line
from comera_dist.storage.run_directory import LOGS

FILES = ("config.yaml", "run.json", *LOGS, "summary.json")


class Mirror:
    """The copy in the folder `url` of the run in the directory `local`, with the checkpoints that are to be `kept`.

    ConfigError if no package serves such a URL.
    """

    def __init__(self, url: str, local: Path, kept: Kept):
        try:
            self._files, self._root = fsspec.core.url_to_fs(f"{url.rstrip('/')}/{local.name}")
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"checkpoint.mirror = {url} cannot be opened ({first_line(error)}); install the package that it names, "
                f"or give a URL that fsspec knows, such as s3://bucket/runs or file:///mnt/runs"
            ) from error
        self._url, self._local, self._kept = url, local, kept
        self._copy: Future[None] | None = None
        self._next: Path | None = None
        self._has_complained = False

    def send(self, checkpoint: Path) -> None:
        """Begins to copy a published checkpoint and the logs; if a copy is under way, `tick` begins this one later."""
        self._next = checkpoint
        self.tick()

    def tick(self) -> None:
        """Begins the copy that waits, if no other is under way."""
        if self._next is not None and (self._copy is None or self._copy.done()):
            checkpoint, self._next = self._next, None
            self._copy = in_background(lambda: self._or_complain(checkpoint))

    def close(self, seconds: float) -> None:
        """Copies what is left and the final logs. Returns after about `seconds` at the latest."""
        if self._copy is not None:
            wait([self._copy], seconds / 2)
        self._next = self._next or next(iter(published(self._local / "checkpoints")), None)
        self.tick()
        if self._next is not None or (self._copy is not None and not wait([self._copy], seconds / 2).done):
            print(f"The copy in {self._url} is not complete: it took longer than {seconds:g} s.", flush=True)

    def fetch(self) -> None:
        """Copies the newest checkpoints and the logs back, into a directory without checkpoints.

        Raises CheckpointError if the remote storage or the disk fails.
        """
        folder = self._local / "checkpoints"
        try:
            for step in self._steps()[: self._kept.newest]:
                partial = partial_of(folder / step)
                partial.mkdir(parents=True, exist_ok=True)
                for name in self._names(step):
                    self._files.get_file(f"{self._root}/checkpoints/{step}/{name}", str(partial / name))
                os.rename(partial, folder / step)
            for name in FILES:
                if self._files.exists(f"{self._root}/{name}") and not (self._local / name).exists():
                    self._files.get_file(f"{self._root}/{name}", str(self._local / name))
        except Exception as error:  # of any class: packages for remote storage have their own
            raise CheckpointError(
                f"the copy of the run in {self._url} cannot be read ({first_line(error)}); mend that and start the "
                f"same command again, or set checkpoint.mirror=null to start without it"
            ) from error

    def _or_complain(self, checkpoint: Path) -> None:
        try:
            self._send(checkpoint)
        except Exception as error:  # of any class: the run is worth more than its copy
            if not self._has_complained:
                print(
                    f"{checkpoint.name} was not copied to {self._url} ({first_line(error)}); the run goes on, and the "
                    f"next checkpoint is tried again.",
                    flush=True,
                )
            self._has_complained = True

    def _send(self, checkpoint: Path) -> None:
        remote = f"{self._root}/checkpoints/{checkpoint.name}"
        if not self._files.exists(f"{remote}/{MANIFEST}"):
            self._files.makedirs(remote, exist_ok=True)
            self._put([path for path in sorted(checkpoint.iterdir()) if path.name != MANIFEST], remote)
        self._put([self._local / name for name in FILES if (self._local / name).exists()], self._root)
        self._put([checkpoint / MANIFEST], remote)
        for step in self._steps()[self._kept.newest :]:
            if not self._kept.is_permanent(step_of(Path(step))):
                self._files.rm_file(f"{self._root}/checkpoints/{step}/{MANIFEST}")
                self._files.rm(f"{self._root}/checkpoints/{step}", recursive=True)

    def _put(self, paths: Sequence[Path], remote: str) -> None:
        for path in paths:
            self._files.put_file(str(path), f"{remote}/{path.name}")

    def _steps(self) -> list[str]:
        """Names of the remote checkpoints that are whole, newest first."""
        if not self._files.exists(f"{self._root}/checkpoints"):
            return []
        names = [_name(path) for path in self._files.ls(f"{self._root}/checkpoints", detail=False, refresh=True)]
        steps = sorted((name for name in names if FOLDER.fullmatch(name)), key=lambda name: -step_of(Path(name)))
        return [step for step in steps if MANIFEST in self._names(step)]

    def _names(self, step: str) -> list[str]:
        """Names of the files of a remote checkpoint."""
        found: list[Any] = self._files.ls(f"{self._root}/checkpoints/{step}", detail=False, refresh=True)
        return sorted(map(_name, found))


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
