"""The torch optimizer of `optim.each_matrix`, and the base of optimizers whose groups' `method` makes the steps."""

from typing import Any

import torch
from torch import nn

from comera_dist.optim.base import Group, State
from comera_dist.optim.in_a_loop import InALoop


class MethodSteps(InALoop):
    """A subclass makes the step of one group. The state of a parameter begins as `method.blank` and counts steps."""

    def __init__(self, groups: list[Group], lr: float):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            self.step_group(group)

    def step_group(self, group: Group) -> None:
        raise NotImplementedError

    def counted(self, group: Group, parameter: nn.Parameter) -> State:
        """The state of the parameter, whose step count takes in this step."""
        state: State = self.state[parameter]
        if not state:
            state |= group["method"].blank(parameter)
        state["step"] += 1
        return state


class MatrixSteps(MethodSteps):
    """Subtracts lr · (update + weight_decay · matrix) from each matrix; the group's `method` makes the update.

    New state is copied into the tensors of `method.blank`, so their memory layout is always the same. A product with
    another layout rounds differently, and a resumed run would differ from the uninterrupted one.
    """

    def step_group(self, group: Group) -> None:
        for matrix in group["params"]:
            if matrix.grad is not None:
                update_MN = group["method"].update(matrix, self.counted(group, matrix), matrix.grad)
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update_MN, alpha=group["lr"])
