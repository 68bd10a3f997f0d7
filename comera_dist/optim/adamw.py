"""AdamW (Loshchilov and Hutter 2019), which updates every parameter that no other optimizer takes."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from comera_dist.config.optim_section import Optim
from comera_dist.optim.base import MEAN, SQUARE, Group, Method, State

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AdamW(Method):
    """torch's AdamW, or GateAdamW with `presses_gates` (if ranks adapt).

    With `captured`, on a GPU, its step can be part of a CUDA graph. Step counts are then tensors, and its arithmetic
    differs from the usual one in rounding.
    """

    name = "adamw"
    roles: ClassVar[Mapping[str, str]] = {"exp_avg": MEAN, "exp_avg_sq": SQUARE}
    can_be_captured = True
    can_round = True
    is_entrywise = True

    def __init__(self, config: Optim, presses_gates: bool = False, captured: bool = False):
        super().__init__(config)
        self._presses_gates, self._captured = presses_gates, captured

    def build(self, groups: list[Group]) -> "torch.optim.AdamW":
        import torch

        from comera_dist.optim.gate_adamw import GateAdamW

        device = groups[0]["params"][0].device
        capturable = self._is_capturable(device)
        if capturable:
            # torch warns when a capturable optimizer steps outside a graph; our warm-up steps do that on purpose.
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
        kind, config = GateAdamW if self._presses_gates else torch.optim.AdamW, self.config
        return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, capturable=capturable)

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        # Each parameter has a step tensor of its own: torch would advance a shared one once per parameter.
        device = parameter.device if self._is_capturable(parameter.device) else "cpu"
        return {"step": parameter.new_tensor(float(step), device=device), **super().blank(parameter)}

    def restart(self, state: State) -> None:
        """Sets the step count of a parameter to 0, in place because a CUDA graph may read it."""
        state["step"].zero_()

    def _is_capturable(self, device: "torch.device") -> bool:
        return self._captured and device.type == "cuda"
