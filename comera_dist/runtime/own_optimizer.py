"""An optimizer of the caller's in place of the one that `optim` configures."""

from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer

# Makes the optimizer of a model; it is called again whenever the model is rebuilt with other ranks.
OptimizerFactory = Callable[[nn.Module], Optimizer]


def follow_schedule(optimizer: Optimizer, peak_lr: float) -> Optimizer:
    """Returns `optimizer` with groups that the schedule can scale: the learning rate of a group is its peak.

    `peak_lr` is the configured learning rate, which the schedule multiplies by a fraction and by a group's `lr_scale`.
    """
    for group in optimizer.param_groups:
        group.setdefault("name", "own")
        group.setdefault("lr_scale", float(group["lr"]) / peak_lr)
    return optimizer
