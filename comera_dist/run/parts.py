"""The parts of a run that a caller may hand in; every other part follows from the configuration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from comera_dist.data.tasks import Task
from comera_dist.formats.plan import Plan
from comera_dist.report.records import Observer
from comera_dist.runtime.graphs import DEFAULT, Compilation
from comera_dist.runtime.own_optimizer import OptimizerFactory

# Builds the model of a plan. Its weights are drawn from the generator, or of any content where that is None, because
# they are loaded then.
ModelFactory = Callable[[Plan, torch.Generator | None], nn.Module]


@dataclass(frozen=True)
class Parts:
    """None (or nothing) stands for what the configuration describes.

    model: a module, or a function that builds the module of a plan. Its forward takes the tensors of a batch, targets
        last, and returns the summed loss (0-dimensional); its `measure` takes the same and returns figures by name. A
        function is called again when rank adaptation has changed the plan; a module has no plan, so its ranks cannot
        adapt, and the keys of `model` and `tensor` do not matter.
    task: what is read and how figures are computed (see `data.tasks.Task`).
    optimizer: an optimizer of the module handed in, or a function that makes the optimizer of a model and is called
        again for every rebuilt one. The learning rates of its groups are peaks: `schedule` scales them. At ZeRO stages
        above 0 it gets flat slices of parameters, so it must treat each number by itself. Ranks cannot adapt with it.
    observers: called with the records of `report.records`, on the first process, after those that every run has.
    compilation: how functions of the step are captured and the model is compiled.
    """

    model: nn.Module | ModelFactory | None = None
    task: Task | None = None
    optimizer: Optimizer | OptimizerFactory | None = None
    observers: Sequence[Observer] = ()
    compilation: Compilation = DEFAULT

    @property
    def optimizer_factory(self) -> OptimizerFactory | None:
        if isinstance(self.optimizer, Optimizer):
            return lambda model: self.optimizer
        return self.optimizer


CONFIGURED = Parts()  # nothing is handed in
