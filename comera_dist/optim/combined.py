"""Several optimizers, each with parameter groups of its own, as the one optimizer that DeepSpeed calls."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.optim.base import Group
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.optim.in_a_loop import InALoop


class WholeParameters(Protocol):
    """The whole parameters that this process steps in place of its slice of all (`runtime.dealt_parameters`)."""

    def collect(self) -> list[nn.Parameter]:
        """The parameters, with weights and gradients of this step. Collective."""

    def distribute(self) -> None:
        """Sends the new weights to the slices on all processes. Collective."""


class CombinedOptimizer(InALoop):
    """Has the groups and the state of all its `parts`, and steps each group with the part that it comes from.

    Groups and state are shared with the parts, not copied. A slice with an entry in `dealt` is replaced by whole
    parameters for the step.
    """

    def __init__(self, *parts: Optimizer):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self.dealt: dict[Tensor, WholeParameters] = {}
        self._part_of = {group["name"]: part for part in parts for group in part.param_groups}
        self._share_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share_state()

    def _share_state(self) -> None:
        for part in self.parts:
            part.state = self.state

    def step(self, closure: Any = None) -> Any:
        """One step of all groups. DeepSpeed calls it once a group or slice, with only that in `param_groups`.

        Returns the loss of `closure`, which is called once for all parts.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            dealt = [self.dealt[slice_] for slice_ in group["params"] if slice_ in self.dealt]
            for whole in dealt:
                self._step(group, whole.collect())
                whole.distribute()
            if not dealt:
                self._step(group, group["params"])
        return loss

    def _step(self, group: Group, parameters: list[nn.Parameter]) -> None:
        if parameters:
            part = self._part_of[group["name"]]
            part.param_groups = [group if parameters is group["params"] else group | {"params": parameters}]
            part.step()


def gate_adamw(optimizer: Optimizer) -> GateAdamW | None:
    """The part that presses on rank gates; None if ranks do not adapt."""
    parts = getattr(optimizer, "parts", (optimizer,))
    return next((part for part in parts if isinstance(part, GateAdamW)), None)
