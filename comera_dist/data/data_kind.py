"""Tells the kind of prepared data in a folder."""

from pathlib import Path

from comera_dist.data.manifest import MANIFEST, read_json

TEXT = "text"


def kind_of(folder: Path) -> str:
    """The kind that the manifest names; text if it names none, or cannot be read: `Corpus` then says what is wrong."""
    try:
        kind = read_json(folder / MANIFEST).get("kind")
    except (OSError, ValueError, AttributeError):
        return TEXT
    return kind if isinstance(kind, str) else TEXT
