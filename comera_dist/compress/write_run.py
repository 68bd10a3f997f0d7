"""Writes weights as a run of no steps, which another run may start from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from comera_dist.checkpoints.disk import published
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.write import Saver
from comera_dist.config.fields import LONGEST_NAME
from comera_dist.config.tree import Config, Run
from comera_dist.data.batches import Cursor
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import RunDirectoryError
from comera_dist.formats.plan import Plan, write_plan
from comera_dist.runtime.processes import Processes
from comera_dist.storage.run_directory import RunDirectory


@dataclass(frozen=True)
class Weights:
    """A model without an optimizer, as a checkpoint holds it."""

    model: nn.Module
    processes: Processes
    optimizer_step: int = 0
    gate_step: int = 0

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in self.model.named_parameters()}

    def check_weights(self) -> None:
        """A single process differs from no other."""

    def state(
        self, owners: dict[str, int] | None = None, device: torch.device | None = None
    ) -> dict[str, dict[str, Tensor]]:
        return {name: {"weight": p.detach().to(device or p.device)} for name, p in self.model.named_parameters()}


def new_run(folder: Path) -> RunDirectory:
    """The run directory `folder`. Raises RunDirectoryError if it holds a run, or cannot be one."""
    directory = RunDirectory(folder)
    _check_name(folder)
    try:
        is_taken = bool(published(directory.checkpoints)) or (folder / "config.yaml").exists()
    except OSError as error:
        raise RunDirectoryError(f"{folder} cannot be written ({error.strerror}); name another folder") from error
    if is_taken:
        raise RunDirectoryError(f"{folder} holds a run, expected a new folder; name another one")
    return directory


def _check_name(folder: Path) -> None:
    """Raises RunDirectoryError if no run can have the folder's name: its configuration could not be read again."""
    try:
        Run(name=folder.name)
    except ValidationError as error:
        raise RunDirectoryError(
            f"{folder} cannot be the directory of a run, whose name begins with a letter or a digit and has letters, "
            f"digits, dots, underscores and dashes, at most {LONGEST_NAME}; name another one"
        ) from error


def write_run(
    folder: Path, config: Config, plan: Plan, model: nn.Module, task: Task[Any] | Mixture, processes: Processes
) -> None:
    """Makes the run directory `folder`, with a checkpoint of step 0 and the run's name in the configuration.

    Raises RunDirectoryError if the folder holds a run, or cannot be written or be a run.
    """
    directory = new_run(folder)
    # The weights are not those with which the run that they are from, or the configured one, was to begin.
    own = {"directory": folder.parent, "name": folder.name, "start_from": None, "start_step": None}
    config = config.model_copy(update={"run": config.run.model_copy(update=own)})
    cursor = Cursor(config.run.seed, epoch=0, tokens=0, fingerprint=task.fingerprint)
    record = {
        "config": config.model_dump(mode="json"),
        "plan": write_plan(plan),
        "planned": write_plan(plan),
        "vocabulary": task.vocabulary,
        "cursor": vars(cursor),
        "wall_seconds": 0.0,
        "ranks": None,
    }
    with directory.held(processes):
        directory.open(config, processes.count, 0)
        saver = Saver(directory.checkpoints, Kept(newest=1))
        saver.begin(0, Weights(model, processes), record)
        saver.wait()
