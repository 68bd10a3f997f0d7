"""Whether a checkpoint is undamaged."""

import errno
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from comera_dist.checkpoints.disk import check_plain, is_away, problem_of, published, step_of
from comera_dist.checkpoints.manifest import MANIFEST, Damage, Manifest, read_manifest
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError, DiskError
from comera_dist.runtime.endings import alive
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together

# Errors of this user or process, at which nothing is known about the file.
NOT_OF_THE_FILE = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class Unread(CheckpointError):
    """A checkpoint that may be whole cannot be read by this user or process."""


def newest_step(root: Path) -> int:
    """Step of the newest checkpoint that looks whole; 0 where there is none."""
    return next((step_of(folder) for folder in published(root) if looks_whole(folder)), 0)


def looks_whole(folder: Path) -> bool:
    """Whether the manifest is undamaged and every file has its size: the files are not read."""
    try:
        files = _manifest_of(folder)["files"]
        return all((folder / name).stat().st_size == record["bytes"] for name, record in files.items())
    except (Damage, Unread, OSError):
        return False


def verify(folder: Path, processes: Processes) -> Manifest:
    """Returns the manifest after hashing every file. Collective: Damage is raised on all processes.

    The first process reads the manifest for all. Each process hashes one file, then they meet, and go on with the next
    ones: a process that waits for the others makes no progress, which the watchdog must not take for a hang.
    """
    read = together(lambda: _manifest_of(folder) if processes.is_first else {}, processes)
    manifest: Manifest = processes.from_first(read)
    files = [folder / name for name in sorted(manifest["files"])]
    for first in range(0, len(files), processes.count):
        share = files[first : first + processes.count][processes.index : processes.index + 1]
        together(partial(_check_files, share, manifest), processes)
    return manifest


def _manifest_of(folder: Path) -> Manifest:
    """Raises Damage, DiskError if the file system is away, or Unread."""
    try:
        check_plain(folder / MANIFEST)
        manifest = read_manifest((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damage(f"its {MANIFEST} is missing") from None
    except OSError as error:
        raise _unreadable(folder / MANIFEST, f"its {MANIFEST}", error) from error
    if manifest["step"] != step_of(folder):
        raise Damage(f"its {MANIFEST} is of step {manifest['step']}")
    return manifest


def _check_files(paths: list[Path], manifest: Manifest) -> None:
    """Raises Damage if size, hash or content of a shard differ from the manifest; else as `_manifest_of`."""
    for path in paths:
        record = manifest["files"][path.name]
        try:
            check_plain(path)
            if path.stat().st_size != record["bytes"]:
                raise Damage(f"{path.name} has {path.stat().st_size} bytes instead of {record['bytes']}")
            if file_sha256(path, _goes_on) != record["sha256"]:
                raise Damage(f"{path.name} does not have the sha256 of its manifest")
            _check_weights(path, manifest)
        except FileNotFoundError:
            raise Damage(f"{path.name} is missing") from None
        except OSError as error:
            raise _unreadable(path, path.name, error) from error
        except SafetensorError as error:
            raise Damage(f"{path.name} is not a safetensors file") from error


def _goes_on() -> bool:
    alive()
    return False


def _unreadable(path: Path, name: str, error: OSError) -> CheckpointError:
    """An undamaged checkpoint must not be passed over because its file system is away, or for want of permissions."""
    if is_away(error):
        return DiskError(f"{path} cannot be read now ({problem_of(error)}); start the same command again")
    if error.errno in NOT_OF_THE_FILE:
        return Unread(
            f"{path} cannot be read ({error.strerror}), though it may be whole; mend the permissions or limits of this "
            f"user and start the same command again, or move {path.parent} away to go on without it"
        )
    return Damage(f"{name} cannot be read ({problem_of(error)})")


def _check_weights(path: Path, manifest: Manifest) -> None:
    """Raises Damage unless the shard holds exactly the weights that the manifest lists for it, in fp32."""
    named = {f"weight/{n}": tensor["shape"] for n, tensor in manifest["tensors"].items() if tensor["file"] == path.name}
    with safe_open(path, framework="pt") as file:
        weights = {key: file.get_slice(key) for key in file.keys() if key.startswith("weight/")}  # noqa: SIM118
        held = {key: part.get_shape() for key, part in weights.items() if part.get_dtype() == "F32"}
    for key in sorted(named.keys() | weights.keys()):
        if named.get(key) != held.get(key):
            raise Damage(f"{path.name} does not hold {key} as its manifest says")
