"""Whole commands, disturbed."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak.marks import mark_moments
from support import ROOT

from comera_dist.commands import pretrain as pretrain_command
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.doctor.disk import disk
from comera_dist.doctor.network import network
from comera_dist.errors import DataError
from comera_dist.models.family import build_model
from comera_dist.run.train import ModelFactory
from comera_dist.runtime.endings import Watchdog
from scenarios.reading import Task


def pretrain(processes, overrides: list[str], fault: str | None = None, process: int = 0, step: int = 2) -> None:
    """launch/pretrain.py, disturbed by `fault` on `process` when it has made `step` steps; ends the process."""
    file, parts = str(ROOT / "tests/defaults.yaml"), {}
    if fault is not None and processes.index == process:
        config = read_config(file, overrides)
        if fault == "other rate":
            overrides = [*overrides, "optim.lr=0.5"]
        elif fault == "undefined loss":
            parts["task"] = Task(config, figures=lambda task: lambda *_: {"loss": float("nan")})
        else:
            parts["model"] = disturbed_model(config, step, FAULTS[fault])
    sys.argv = ["pretrain.py", "--config", file, *overrides]
    pretrain_command.main(**parts)


def doctor(processes, directory: str) -> list[tuple[str, str]]:
    """Checks and grades of the connection and of the disk."""
    findings = [*network(processes), *disk(Path(directory), processes)]
    return [(one.check, one.grade.value) for one in findings]


def pretrain_marked(processes, overrides: list[str], marks: str) -> None:
    """launch/pretrain.py, which marks the moments of the run in the file `marks`."""
    mark_moments(Path(marks))
    pretrain(processes, overrides)


def pretrain_impatiently(processes, overrides: list[str], seconds: float) -> None:
    """launch/pretrain.py with a short watchdog from the third step on; a start on busy cores takes longer."""
    file = str(ROOT / "tests/defaults.yaml")
    model = disturbed_model(read_config(file, overrides), 2, lambda directory: Watchdog(seconds).__enter__())
    sys.argv = ["pretrain.py", "--config", file, *overrides]
    pretrain_command.main(model=model)


def disturbed_model(config: Config, step: int, fault: Callable[[Path], None]) -> ModelFactory:
    """Builds a model that calls `fault` with the run's directory in its first forward pass after `step` steps."""
    passes = []

    def count(module, inputs) -> None:
        passes.append(module.training)
        if sum(passes) == step + 1 and module.training:
            fault(config.run_directory)

    def build(plan, generator):
        model = build_model(config.model, plan, generator)
        model.register_forward_pre_hook(count)
        return model

    return build


def _remove(directory: Path) -> None:
    while directory.exists():  # a thread may write a checkpoint there
        shutil.rmtree(directory, ignore_errors=True)


def _raise(error: Exception) -> None:
    raise error


FAULTS = {
    "hang": lambda directory: time.sleep(60),
    "death": lambda directory: os._exit(9),
    "own error": lambda directory: _raise(DataError("a shard of this process only is damaged; copy it again")),
    "removal": lambda directory: _remove(directory),
    "disk full": lambda directory: (directory / "checkpoints").write_text("in the way"),
    "console": lambda directory: os.close(1),
}
