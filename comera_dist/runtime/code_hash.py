"""The code of this package as it lies on the disk of this process."""

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
SHIPPED = "_shipped"  # in a wheel alone: scripts that a run does not import


def code_sha256() -> str:
    """The hash of all modules of this package, by their names and contents."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(f"{SHIPPED}/"):
            digest.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
