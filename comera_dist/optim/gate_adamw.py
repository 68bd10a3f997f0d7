"""AdamW that presses on rank gates."""

from typing import Any

import torch
from torch import Tensor

from comera_dist.optim.base import SQUARE, Group
from comera_dist.optim.in_a_loop import InALoop
from comera_dist.optim.narrow_moments import moment


class GateAdamW(InALoop, torch.optim.AdamW):
    """AdamW that also lowers `pressure` · Σ_j weight_j · |g_j| over its group `gates`.

    The penalty is not part of Adam's moments. After Adam's update each gate takes a proximal step of the penalty in
    Adam's metric (Yun, Lozano and Yang 2021, ProxGen): towards 0 by lr · min(1, pressure · weight / √v), stopping at 0.
    So the second moments v stay those of the loss, where they tell how much a gate matters; clipping does not see the
    penalty; and a gate at 0 grows again if the loss pulls harder than one step of the pressure.

    Without `pressure` it is AdamW. The number of operations does not depend on the number of gates. Values assigned to
    `pressure` and `gate_weights` are copied to tensors that stay where they are, because a CUDA graph reads them there.
    """

    _pressure: Tensor | None = None
    _gate_weights: dict[Tensor, Tensor] | None = None

    @property
    def pressure(self) -> Tensor | None:
        """0-dimensional."""
        return self._pressure

    @pressure.setter
    def pressure(self, pressure: Tensor) -> None:
        if self._pressure is None:
            self._pressure = torch.empty_like(pressure)
        self._pressure.copy_(pressure)

    @property
    def gate_weights(self) -> dict[Tensor, Tensor] | None:
        """A weight for each number of every tensor of the group `gates`, by that tensor.

        A step may see only some of them: DeepSpeed may split the group and call the optimizer once for each part.
        """
        return self._gate_weights

    @gate_weights.setter
    def gate_weights(self, weights: dict[Tensor, Tensor]) -> None:
        if self._gate_weights is None:
            self._gate_weights = {gate: torch.empty_like(weight) for gate, weight in weights.items()}
        for gate, weight in weights.items():
            self._gate_weights[gate].copy_(weight)

    @property
    def pressing(self) -> list[Tensor]:
        """The tensors of `pressure` and `gate_weights` that are set."""
        return [tensor for tensor in (self._pressure, *(self._gate_weights or {}).values()) if tensor is not None]

    def forget_gates(self) -> None:
        """Drops the gates that it pressed on; the next `gate_weights` may be of others."""
        self._gate_weights = None

    def second_moment(self, gate: Tensor) -> Tensor:
        """Adam's mean of squared gradients of `gate`, in its shape; zeros before the first step."""
        state = self.state[gate]
        return moment(state, "exp_avg_sq", SQUARE).to(gate.dtype) if state else torch.zeros_like(gate)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step of AdamW, then the proximal step on the gates."""
        result = super().step(closure)
        for group in self.param_groups:
            if group["name"] == "gates" and group["params"]:
                self._press(group)
        return result

    def _press(self, group: Group) -> None:
        if self._pressure is None or not self._gate_weights:
            return
        gates = [gate for gate in group["params"] if self.state[gate]]  # a layer may not have been used yet
        if not gates:
            return
        weights = [self._gate_weights[gate] for gate in gates]
        metric = torch._foreach_sqrt([self.state[gate]["exp_avg_sq"] for gate in gates])
        # 1 − β₂ᵗ corrects v for its bias as in Adam's update, so that the penalty is as strong right after the moments
        # began anew as in the long run. All gates of the group have made the same number t of steps since then.
        correction = 1 - group["betas"][1] ** self.state[gates[0]]["step"].double()
        torch._foreach_div_(metric, correction.sqrt().to(metric[0]))
        torch._foreach_add_(metric, group["eps"])
        steps = torch._foreach_div(weights, list(metric))
        torch._foreach_mul_(steps, self._pressure.to(steps[0].dtype))
        torch._foreach_clamp_max_(steps, 1.0)
        torch._foreach_mul_(steps, group["lr"])
        sizes = torch._foreach_abs(gates)
        torch._foreach_sub_(sizes, steps)
        torch._foreach_clamp_min_(sizes, 0.0)
        torch._foreach_copy_(gates, torch._foreach_mul(torch._foreach_sign(gates), sizes))
