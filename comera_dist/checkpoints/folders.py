"""The folders of checkpoints: their names, and which there are."""

import os
import re
from pathlib import Path

FOLDER = re.compile("step_([0-9]{7,})")


def published(root: Path) -> list[Path]:
    """Checkpoint folders, newest first."""
    try:
        with os.scandir(root) as entries:
            folders = [Path(entry) for entry in entries if FOLDER.fullmatch(entry.name) and entry.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(folders, key=step_of, reverse=True)


def folder_name(step: int) -> str:
    return f"step_{step:07d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))
