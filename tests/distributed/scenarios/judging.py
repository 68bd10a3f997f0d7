"""What launch/evaluate.py does with a trained decoder, besides the figures on prepared data."""

from pathlib import Path
from typing import Any

from comera_dist.judge.tasks import judge_on_tasks


def judge_run(processes, run: str, names: list[str], folder: str) -> dict[str, Any]:
    """The metrics on tasks in a folder."""
    return judge_on_tasks(Path(run), processes, None, names, Path(folder), None)
