"""The torch optimizer of the methods in `optim.projected`."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from comera_dist.optim.base import Group
from comera_dist.optim.projected import shorter_side_first


class ProjectedSteps(Optimizer):
    """Subtracts lr · (update + weight_decay · matrix) from each matrix; the group's `method` makes the update."""

    def __init__(self, groups: list[Group], lr: float):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._step(group, matrix)

    def _step(self, group: Group, matrix: nn.Parameter) -> None:
        assert matrix.grad is not None
        method, state = group["method"], self.state[matrix]
        if not state:
            state |= method.blank(matrix)
        state["step"] += 1
        update_SL = method.update(matrix, state, shorter_side_first(matrix.grad))
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        shorter_side_first(matrix).sub_(update_SL, alpha=group["lr"])
