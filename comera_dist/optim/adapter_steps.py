"""The torch optimizer of `optim.relora`."""

from comera_dist.optim.base import Group
from comera_dist.optim.matrix_steps import MethodSteps


class AdapterSteps(MethodSteps):
    """Adds the change that the group's `method` makes, and decays the matrix."""

    def step_group(self, group: Group) -> None:
        for matrix in group["params"]:
            if matrix.grad is not None:
                change_MN = group["method"].change(matrix, self.counted(group, matrix), matrix.grad, group["lr"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(change_MN)
