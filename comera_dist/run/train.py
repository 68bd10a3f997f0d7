"""The door to a run. Imports no DeepSpeed: that looks for its device when it is imported."""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from comera_dist.config.tree import Config
from comera_dist.data.tasks import Task
from comera_dist.report.records import Observer
from comera_dist.run.parts import ModelFactory, Parts
from comera_dist.runtime.own_optimizer import OptimizerFactory
from comera_dist.runtime.processes import Processes, start_processes


def train(
    config: Config,
    processes: Processes | None = None,
    *,
    model: nn.Module | ModelFactory | None = None,
    task: Task | None = None,
    optimizer: Optimizer | OptimizerFactory | None = None,
    observers: Sequence[Observer] = (),
) -> int:
    """Runs or resumes the run that `config` names, with the caller's parts in place of the configured ones (`Parts`).

    Joins the processes of the launcher where none are given. Returns 0 where the run is finished and 75 where it was
    asked to stop, by SIGTERM or SIGINT, and goes on at the next call. Collective: every process calls it alike.
    Raises ComeraError, on a single process where only that one meets with an error.
    """
    parts = Parts(model, task, optimizer, observers)
    processes = processes or start_processes(config.train.timeout_seconds)
    from comera_dist.run.loop import run_or_resume

    return run_or_resume(config, processes, parts)
