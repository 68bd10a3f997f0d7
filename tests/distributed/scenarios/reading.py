"""Data that one process cannot read."""

from collections.abc import Callable

from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.data.tasks import open_task
from comera_dist.errors import DataError
from comera_dist.run.loop import run_or_resume
from comera_dist.run.train import Parts


class Task:
    """The task of a configuration with some things of its own."""

    def __init__(self, config: Config, **own):
        self._task, self._own = open_task(config), own

    def __getattr__(self, name: str):
        return self._own[name](self._task) if name in self._own else getattr(self._task, name)


class Rows:
    """Rows that call `check` with the rows' draws before they are read."""

    def __init__(self, examples, check: Callable):
        self._examples, self._check = examples, check

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, row_B, draw_B):
        self._check(draw_B)
        return self._examples.batch(row_B, draw_B)


def train_with_unreadable_rows(processes, runs: list[list[str]], process: int) -> list[list[str]]:
    """What each run says where `process` cannot read rows: from the fourth step on, then in the validation."""
    is_disturbed = processes.index == process
    return [[_unreadable(processes, run, is_disturbed and split) for split in ("train", "valid")] for run in runs]


def _unreadable(processes, overrides: list[str], split: str | bool) -> str:
    config, validated = read_config(None, overrides), []

    def check_train(draw_B) -> None:
        step, _ = divmod(int(draw_B[0]), config.global_batch)
        if split == "train" and step >= 3:
            raise DataError(f"process {processes.index} cannot read the rows of step {step + 1}")

    def check_valid(draw_B) -> None:
        validated.append(draw_B)
        if split == "valid" and len(validated) > 1:
            raise DataError(f"process {processes.index} cannot read on")

    task = Task(
        config,
        train=lambda task: lambda: Rows(task.train(), check_train),
        held_out=lambda task: lambda name: Rows(task.held_out(name), check_valid),
    )
    try:
        run_or_resume(config, processes, Parts(task=task))
        return "no error"
    except DataError as error:
        return str(error)
