"""Whether a checkpoint is undamaged."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from comera_dist.checkpoints.disk import problem_of
from comera_dist.checkpoints.folders import published, step_of
from comera_dist.checkpoints.manifest import MANIFEST, Damage, read_manifest
from comera_dist.data.contents import file_sha256
from comera_dist.runtime.processes import Processes


def newest_step(root: Path) -> int:
    """Step of the newest checkpoint that looks whole; 0 where there is none."""
    return next((step_of(folder) for folder in published(root) if looks_whole(folder)), 0)


def looks_whole(folder: Path) -> bool:
    """Whether the manifest is undamaged and all files have their sizes: what can be known without reading them."""
    try:
        files = _manifest_of(folder)["files"]
        return all((folder / name).stat().st_size == record["bytes"] for name, record in files.items())
    except (Damage, OSError):
        return False


def verify(folder: Path, processes: Processes) -> tuple[dict | None, str | None]:
    """The manifest, and why the checkpoint cannot be used, or None.

    Collective: the first process reads the manifest for all, and each process hashes its share of the files.
    """
    manifest, problem = processes.from_first(_manifest_or_problem(folder))
    files = [] if manifest is None else sorted(manifest["files"])
    problems = [_file_damage(folder / name, manifest) for name in files[processes.index :: processes.count]]
    found = next(filter(None, [problem, *problems]), None)
    return manifest, next(filter(None, processes.gather(found)), None)


def _manifest_or_problem(folder: Path) -> tuple[dict | None, str | None]:
    try:
        return _manifest_of(folder), None
    except Damage as damage:
        return None, str(damage)


def _manifest_of(folder: Path) -> dict:
    """Raises Damage."""
    try:
        manifest = read_manifest((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damage(f"its {MANIFEST} is missing") from None
    except OSError as error:
        raise Damage(f"its {MANIFEST} cannot be read ({problem_of(error)})") from error
    if manifest["step"] != step_of(folder):
        raise Damage(f"its {MANIFEST} is of step {manifest['step']}")
    return manifest


def _file_damage(path: Path, manifest: dict) -> str | None:
    record = manifest["files"][path.name]
    try:
        if path.stat().st_size != record["bytes"]:
            return f"{path.name} has {path.stat().st_size} bytes instead of {record['bytes']}"
        if file_sha256(path) != record["sha256"]:
            return f"{path.name} does not have the sha256 of its manifest"
        return _content_damage(path, manifest)
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({problem_of(error)})"
    except SafetensorError:
        return f"{path.name} is not a safetensors file"


def _content_damage(path: Path, manifest: dict) -> str | None:
    """Where the weights of a shard are not those that the manifest names."""
    named = {f"weight/{n}": tensor["shape"] for n, tensor in manifest["tensors"].items() if tensor["file"] == path.name}
    with safe_open(path, framework="pt") as file:
        weights = {key: file.get_slice(key) for key in file.keys() if key.startswith("weight/")}  # noqa: SIM118
        held = {key: part.get_shape() for key, part in weights.items() if part.get_dtype() == "F32"}
    differing = sorted(key for key in named.keys() | weights.keys() if named.get(key) != held.get(key))
    return f"{path.name} does not hold {differing[0]} as its manifest says" if differing else None
