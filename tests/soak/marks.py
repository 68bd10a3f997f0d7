"""Marks of the moments of a run in a file, by which attacks are timed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from comera_dist.checkpoints.write import Saver
from comera_dist.run.run_model import RunModel
from comera_dist.run.session import Session


def mark_moments(file: Path) -> None:
    """From now on this process adds a word to `file` whenever it enters a save, a cut of ranks or a validation."""

    def mark(moment: str) -> None:
        with file.open("a") as marks:
            marks.write(f"{moment}\n")

    def marked(moment: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def enter(*arguments: Any, **options: Any) -> Any:
            mark(moment)
            return function(*arguments, **options)

        return enter

    Saver.begin = marked("save", Saver.begin)
    Saver._publish = marked("save", Saver._publish)
    RunModel.rebuild = marked("cut", RunModel.rebuild)
    Session.validate = marked("validation", Session.validate)
    mark("start")
