"""The public function that trains a run, and the parts of a run that its caller may hand in.

Imports no DeepSpeed, which looks for its device when it is imported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from comera_dist.config.tree import Config
from comera_dist.data.tasks import Task
from comera_dist.formats.plan import Plan
from comera_dist.report.records import Observer
from comera_dist.runtime.graphs import DEFAULT, Compilation
from comera_dist.runtime.own_optimizer import OptimizerFactory
from comera_dist.runtime.processes import Processes, start_processes

# Builds the model of a plan. Weights are drawn from the generator; if it is None they may have any content, because
# they are loaded afterwards.
ModelFactory = Callable[[Plan, torch.Generator | None], nn.Module]


@dataclass(frozen=True)
class Parts:
    """A part that is None (or empty) is made as the configuration describes it.

    model: a module, or a function that builds the module of a plan. Its forward takes the tensors of a batch, targets
        last, and returns the summed loss (0-dimensional); its `measure` takes the same and returns figures by name. A
        function is called again when rank adaptation has changed the plan; a module has no plan, so its ranks cannot
        adapt, and the keys of `model` and `tensor` have no effect. `train.activation_checkpointing` acts on blocks
        that are `CheckpointedBlock`s (`models.checkpointed_block`) alone. All parameters are in fp32 and trained, and
        no step changes a persistent buffer, because checkpoints hold fp32 parameters alone; ConfigError otherwise.
    task: reads the data and computes figures (see `data.tasks.Task`).
    optimizer: an optimizer of all parameters of the module handed in, or a function that makes that of a model and is
        called again for every rebuilt one. The learning rates of its groups are peaks, which `schedule` scales, and
        `optim.lr` has no effect; the logged rate is that of the first group. At ZeRO stages above 0 it gets flat slices
        of parameters, so it must treat each number by itself. Ranks cannot adapt with it.
    observers: called with the records of `report.records` on the first process, after the observers of every run.
    compilation: how functions of the step are captured and the model is compiled.
    """

    model: nn.Module | ModelFactory | None = None
    task: Task[Any] | None = None
    optimizer: Optimizer | OptimizerFactory | None = None
    observers: Sequence[Observer] = ()
    compilation: Compilation = DEFAULT

    @property
    def optimizer_factory(self) -> OptimizerFactory | None:
        optimizer = self.optimizer
        return (lambda model: optimizer) if isinstance(optimizer, Optimizer) else optimizer


CONFIGURED = Parts()  # nothing is handed in


def train(
    config: Config,
    processes: Processes | None = None,
    *,
    model: nn.Module | ModelFactory | None = None,
    task: Task[Any] | None = None,
    optimizer: Optimizer | OptimizerFactory | None = None,
    observers: Sequence[Observer] = (),
) -> int:
    """Runs or resumes the run that `config` names, with the caller's parts in place of the configured ones (`Parts`).

    Joins the launcher's processes if `processes` is None. Returns 0 if the run is finished, and 75 if SIGTERM or SIGINT
    stopped it, so that the next call resumes it; before its first step they end the whole program with status 75. On
    another thread than the main one no signal stops the run. Collective: every process must call it with the same
    arguments. Raises ComeraError, on a single process if only that one meets the error.
    """
    parts = Parts(model, task, optimizer, observers)
    processes = processes or start_processes(config.train.timeout_seconds)
    from comera_dist.run.loop import run_or_resume

    return run_or_resume(config, processes, parts)
