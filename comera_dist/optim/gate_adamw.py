"""AdamW that presses on rank gates."""

import torch
from torch import Tensor


class GateAdamW(torch.optim.AdamW):
    """AdamW that also lowers `pressure` · Σ_j weight_j · |g_j| over its group `gates`.

    The penalty is no part of Adam's moments: after Adam's update each gate takes a proximal step of it in Adam's metric
    (Yun, Lozano and Yang 2021, ProxGen), towards 0 by lr · min(1, pressure · weight / √v), and stops there. So the
    second moments v stay those of the loss, where they tell how much a gate matters; clipping does not see the penalty;
    and a gate at 0 comes back when the loss pulls harder than one step of the pressure.

    Without `pressure` it is AdamW. The number of operations does not depend on the number of gates. What is assigned to
    `pressure` and `gate_weights` is copied to tensors that stay where they are, because a CUDA graph reads them there.
    """

    _pressure: Tensor | None = None
    _gate_weights: list[Tensor] | None = None

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
    def gate_weights(self) -> list[Tensor] | None:
        """Shaped like what the group `gates` holds where this optimizer steps."""
        return self._gate_weights

    @gate_weights.setter
    def gate_weights(self, weights: list[Tensor]) -> None:
        if self._gate_weights is None:
            self._gate_weights = list(map(torch.empty_like, weights))
        for mine, given in zip(self._gate_weights, weights, strict=True):
            mine.copy_(given)

    @property
    def pressing(self) -> list[Tensor]:
        """The tensors of both, where they are set."""
        return [tensor for tensor in (self._pressure, *(self._gate_weights or ())) if tensor is not None]

    @torch.no_grad()
    def step(self, closure=None):
        result = super().step(closure)
        if self.pressure is not None and self.gate_weights:
            for group in self.param_groups:
                if group["name"] == "gates" and group["params"]:
                    self._press(group)
        return result

    def _press(self, group: dict) -> None:
        gates = group["params"]
        metric = torch._foreach_sqrt([self.state[gate]["exp_avg_sq"] for gate in gates])
        torch._foreach_add_(metric, group["eps"])
        steps = torch._foreach_div(self.gate_weights, metric)
        torch._foreach_mul_(steps, self.pressure.to(steps[0].dtype))
        torch._foreach_clamp_max_(steps, 1.0)
        torch._foreach_mul_(steps, group["lr"])
        sizes = torch._foreach_abs(gates)
        torch._foreach_sub_(sizes, steps)
        torch._foreach_clamp_min_(sizes, 0.0)
        torch._foreach_copy_(gates, torch._foreach_mul(torch._foreach_sign(gates), sizes))
