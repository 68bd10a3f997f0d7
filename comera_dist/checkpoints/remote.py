"""The remote folder of a run, with the layout of the run's directory, on any storage that fsspec serves.

The manifest of a checkpoint is copied last and removed first, so a folder without one is not a checkpoint.
"""

from pathlib import Path

from fsspec import AbstractFileSystem

from comera_dist.checkpoints.disk import FOLDER, step_of
from comera_dist.checkpoints.manifest import MANIFEST


class RemoteRun:
    """The folder `root` in `files`. Checkpoints go by the names of their folders. Raises the errors of the storage."""

    def __init__(self, files: AbstractFileSystem, root: str):
        self._files, self._root = files, root

    def put_file(self, local: Path) -> None:
        """Copies a file of the run's directory here."""
        self._files.put_file(str(local), f"{self._root}/{local.name}")

    def remove_file(self, name: str) -> None:
        """Removes a file of the run's directory if it is here."""
        if self.has_file(name):
            self._files.rm_file(f"{self._root}/{name}")

    def has_file(self, name: str) -> bool:
        """Whether a file of the run's directory is here."""
        return self._exists(f"{self._root}/{name}")

    def read(self, name: str) -> bytes | None:
        """The content of a file of the run's directory; None if it is not here."""
        return self._read(f"{self._root}/{name}")

    def get(self, name: str, local: Path) -> None:
        """Copies a file, named by its path in the run's directory, to `local`, whole or not at all."""
        partial = local.with_name(f".{local.name}.tmp")
        self._files.get_file(f"{self._root}/{name}", str(partial))
        partial.replace(local)

    def steps(self) -> list[str]:
        """The checkpoints that are whole, newest first."""
        return [step for step in self.folders() if MANIFEST in self.names(step)]

    def folders(self) -> list[str]:
        """All folders of checkpoints, newest first; a copy that was killed has left some that are not whole."""
        if not self._exists(f"{self._root}/checkpoints"):
            return []
        names = map(_name, self._files.ls(f"{self._root}/checkpoints", detail=False, refresh=True))
        return sorted(filter(FOLDER.fullmatch, names), key=lambda name: -step_of(Path(name)))

    def names(self, step: str) -> list[str]:
        """The files of a checkpoint, its manifest last."""
        found = map(_name, self._files.ls(self._path(step), detail=False, refresh=True))
        return sorted(found, key=lambda name: (name == MANIFEST, name))

    def manifest(self, step: str) -> bytes | None:
        """The manifest of a checkpoint; None if there is none."""
        return self._read(self._path(step, MANIFEST))

    def put_shards(self, checkpoint: Path) -> None:
        """Copies the files of a checkpoint except its manifest, in the place of one of the same step."""
        self.remove(checkpoint.name)
        self._files.makedirs(self._path(checkpoint.name), exist_ok=True)
        for path in sorted(checkpoint.iterdir()):
            if path.name != MANIFEST:
                self._files.put_file(str(path), self._path(checkpoint.name, path.name))

    def put_manifest(self, checkpoint: Path) -> None:
        """Makes the files that were copied a checkpoint."""
        self._files.put_file(str(checkpoint / MANIFEST), self._path(checkpoint.name, MANIFEST))

    def remove(self, step: str) -> None:
        """Removes a checkpoint, or the part of it that is here."""
        if self._exists(self._path(step, MANIFEST)):
            self._files.rm_file(self._path(step, MANIFEST))
        if self._exists(self._path(step)):
            self._files.rm(self._path(step), recursive=True)

    def _read(self, path: str) -> bytes | None:
        found: bytes | None = self._files.cat_file(path) if self._exists(path) else None
        return found

    def _exists(self, path: str) -> bool:
        """Unlike fsspec's `exists` of most storage, raises an error of storage that is away: it is not an empty one."""
        try:
            self._files.info(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, step: str, *names: str) -> str:
        return "/".join((self._root, "checkpoints", step, *names))


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
