"""Several optimizers, each of which steps parameter groups of its own, as the one optimizer that DeepSpeed calls."""

from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.optim.gate_adamw import GateAdamW


class Hand(Protocol):
    """The whole parameters that were dealt out to this process, where it otherwise holds a slice of all of them."""

    def collect(self) -> list[nn.Parameter]:
        """The parameters, with weights and gradients of this step. Collective."""

    def hand_back(self) -> None:
        """Sends the new weights to the slices that they belong to. Collective."""


class CombinedOptimizer(Optimizer):
    """Has the groups and the state of all its parts, and steps each group with the part that it comes from.

    Groups and state are shared, not copied: a learning rate or a tensor that is set here is theirs. DeepSpeed calls
    `step` once a group, or once a slice of a group, with only that in `param_groups`. Where `hands` has an entry for a
    slice, the whole parameters of that hand are stepped in its place.
    """

    def __init__(self, *parts: Optimizer):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self.hands: dict[Tensor, Hand] = {}
        self._part_of = {group["name"]: part for part in parts for group in part.param_groups}
        for part in parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:
        assert closure is None, "each part would call it"
        for group in self.param_groups:
            dealt = [self.hands[slice_] for slice_ in group["params"] if slice_ in self.hands]
            for hand in dealt:
                self._step(group, hand.collect())
                hand.hand_back()
            if not dealt:
                self._step(group, group["params"])

    def _step(self, group: dict, parameters: list[nn.Parameter]) -> None:
        if parameters:
            part = self._part_of[group["name"]]
            part.param_groups = [group if parameters is group["params"] else group | {"params": parameters}]
            part.step()


def gate_adamw(optimizer: Optimizer) -> GateAdamW | None:
    """The part that presses on rank gates; None where ranks do not adapt."""
    parts = getattr(optimizer, "parts", (optimizer,))
    return next((part for part in parts if isinstance(part, GateAdamW)), None)
