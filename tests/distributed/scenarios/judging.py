"""What launch/evaluate.py does with a trained decoder, besides the figures on prepared data."""

from pathlib import Path
from typing import Any

from comera_dist.errors import ComeraError
from comera_dist.judge.report import judge_with_report
from comera_dist.judge.tasks import judge_on_tasks
from comera_dist.judge.text import judge_on_text


def judge_run(processes, run: str, names: list[str], folder: str, shots: int | None = None) -> dict[str, Any] | str:
    """The metrics on tasks in a folder, or the error."""
    try:
        return judge_on_tasks(Path(run), processes, None, names, Path(folder), None, shots)
    except ComeraError as error:
        return str(error)


def judge_text(processes, run: str, path: str, stride: int) -> dict[str, Any]:
    """The figures of a text file."""
    return judge_on_text(Path(run), processes, None, Path(path), stride)


def judge_report(processes, run: str, folder: str) -> dict[str, Any]:
    """The figures and curves of the validation split."""
    return judge_with_report(Path(run), processes, None, None, "valid", None, Path(folder))
