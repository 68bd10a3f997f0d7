"""The torch optimizer of `optim.each_matrix`."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from comera_dist.optim.base import Group


class MatrixSteps(Optimizer):
    """Subtracts lr · (update + weight_decay · matrix) from each matrix; the group's `method` makes the update.

    New state is copied into the tensors of `method.blank`, so their memory layout is always the same. A product with
    another layout rounds differently, and a resumed run would differ from the uninterrupted one.
    """

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
        update_MN = method.update(matrix, state, matrix.grad)
        matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update_MN, alpha=group["lr"])
