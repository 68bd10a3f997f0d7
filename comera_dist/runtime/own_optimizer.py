"""An optimizer of the caller's in place of the one that `optim` configures."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.errors import ConfigError
from comera_dist.optim.base import Method, Shape, State

# Makes the optimizer of a model; it is called again whenever the model is rebuilt.
OptimizerFactory = Callable[[nn.Module], Optimizer]


class OwnMethod(Method):
    """Keeps what the optimizer of `group` keeps: found by a step with a stand-in of `ndim` axes.

    ConfigError for a tensor that is not shaped like its parameter.
    """

    name = "own"
    roles: ClassVar[Mapping[str, str]] = {}

    def __init__(self, optimizer: Optimizer, group: dict, ndim: int):
        parameter = torch.zeros([2] * ndim, device=group["params"][0].device, requires_grad=True)
        state = dict(_state_after_a_step(optimizer, group, parameter))
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
        if isinstance(self._step, Tensor):
            return {"step": torch.full_like(self._step, step), **super().blank(parameter)}
        return ({} if self._step is None else {"step": step}) | super().blank(parameter)

    def tensors(self, state: State) -> dict[str, Tensor]:
        return {kind: state[kind] for kind in self._kinds}


def described(optimizer: Optimizer, peak_lr: float, sees_slices: bool) -> Optimizer:
    """Returns `optimizer` with groups that a run can schedule and save: the learning rate of a group is its peak.

    `peak_lr` is the configured learning rate, which the schedule multiplies by a fraction and by a group's `lr_scale`.
    With `sees_slices`, at ZeRO stages above 0, the optimizer gets flat slices of parameters, so it must treat each
    number by itself.
    """
    for index, group in enumerate(optimizer.param_groups):
        group.setdefault("name", f"own_{index}")
        group.setdefault("lr_scale", float(group["lr"]) / peak_lr)
        group["method"] = OwnMethod(optimizer, group, 1 if sees_slices else group["params"][0].ndim)
    return optimizer


def _state_after_a_step(optimizer: Optimizer, group: dict, parameter: Tensor) -> State:
    """What the optimizer keeps of `parameter` after a step without gradient. Its own parameters stay as they are."""
    groups = optimizer.param_groups
    parameter.grad = torch.zeros_like(parameter)
    optimizer.param_groups = [{**group, "params": [parameter]}]
    try:
        optimizer.step()
        return optimizer.state.pop(parameter, {})
    finally:
        optimizer.param_groups = groups
