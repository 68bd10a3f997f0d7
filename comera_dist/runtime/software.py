"""The packages of this process, and the code of this one as it lies on its disk."""

import hashlib
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "deepspeed", "opt_einsum", "sentencepiece", "safetensors", "numpy")  # that change a run's numbers
PACKAGE = Path(__file__).parent.parent
SHIPPED = "_shipped"  # in a wheel alone: scripts that a run does not import


def software() -> dict[str, str]:
    """All of it that changes a run's numbers: versions of packages, and the beginning of the code's hash."""
    return {**package_versions(), "code of comera_dist": code_sha256()[:12]}


def package_versions() -> dict[str, str]:
    """The versions of PACKAGES."""
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def code_sha256() -> str:
    """The hash of all modules of this package, by their names and contents."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(f"{SHIPPED}/"):
            digest.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
