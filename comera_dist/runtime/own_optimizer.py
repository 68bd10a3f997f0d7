"""An optimizer that the caller hands in, in place of the one that `optim` configures."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.errors import ConfigError
from comera_dist.optim.base import Group, Method, Shape, State

# Makes the optimizer of a model. It is called again whenever the model is rebuilt, because ZeRO rewrites the groups.
OptimizerFactory = Callable[[nn.Module], Optimizer]


class OwnMethod(Method):
    """Describes an optimizer by the state that it makes in a step of a stand-in for the parameters of `group`.

    The stand-in has `ndim` axes. ConfigError if a tensor of the state is not shaped like the parameter.
    """

    name = "own"
    roles: ClassVar[Mapping[str, str]] = {}

    def __init__(self, optimizer: Optimizer, group: Group, ndim: int):
        parameter = torch.zeros([2] * ndim, device=group["params"][0].device, requires_grad=True)
        parameter.grad = torch.zeros_like(parameter)
        groups, optimizer.param_groups = optimizer.param_groups, [{**group, "params": [parameter]}]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = groups
        state = dict(optimizer.state.pop(parameter, {}))
        self._step = state.pop("step", None)
        self._kinds = [kind for kind, value in state.items() if value is not None]
        for kind in self._kinds:
            if getattr(state[kind], "shape", None) != parameter.shape:
                raise ConfigError(
                    f"the optimizer {type(optimizer).__name__} keeps {kind} of a parameter, expected tensors that are "
                    f"shaped like it; describe it as a `Method` in OPTIMIZERS and set optim.kind"
                )

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        return dict.fromkeys(self._kinds, shape)

    def blank(self, parameter: Tensor, step: int = 0) -> State:
        if self._step is None:
            return super().blank(parameter)
        count = torch.full_like(self._step, step) if isinstance(self._step, Tensor) else step
        return {"step": count, **super().blank(parameter)}

    def tensors(self, state: State) -> dict[str, Tensor]:
        return {kind: state[kind] for kind in self._kinds}


def described(optimizer: Optimizer, peak_lr: float, sees_slices: bool) -> Optimizer:
    """Returns `optimizer` with groups that a run can schedule and save. The learning rate of a group is its peak.

    `peak_lr` is the configured learning rate, which the schedule multiplies by a fraction and by a group's `lr_scale`.
    With `sees_slices`, at ZeRO stages above 0, the optimizer gets flat slices of parameters, so it must treat each
    number by itself.
    """
    for index, group in enumerate(optimizer.param_groups):
        group.setdefault("name", f"own_{index}")
        group.setdefault("lr_scale", float(group["lr"]) / peak_lr)
        group["method"] = OwnMethod(optimizer, group, 1 if sees_slices else group["params"][0].ndim)
    return optimizer
