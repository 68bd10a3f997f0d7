"""AdamW that presses on rank gates."""

import torch
from torch import Tensor


class GateAdamW(torch.optim.AdamW):
    """AdamW that also lowers `pressure` · Σ_j weight_j · |g_j| over its group `gates`.

    The penalty is no part of Adam's moments: after Adam's update each gate takes a proximal step of it in Adam's metric
    (Yun, Lozano and Yang 2021, ProxGen), towards 0 by lr · min(1, pressure · weight / √v), and stops there. So the
    second moments v stay those of the loss, where they tell how much a gate matters; clipping does not see the penalty;
    and a gate at 0 comes back when the loss pulls harder than one step of the pressure. v is corrected for its bias as
    in Adam's update, so that the penalty is as strong right after the moments began anew as it is in the long run; all
    gates of the group have made the same number of steps since then.

    Without `pressure` it is AdamW. The number of operations does not depend on the number of gates. What is assigned to
    `pressure` and `gate_weights` is copied to tensors that stay where they are, because a CUDA graph reads them there.
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
        """By what this optimizer updates, at least all that the group `gates` ever holds, and shaped like it.

        A step sees a part of them where DeepSpeed splits the group and calls the optimizer once a part.
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
        """The tensors of both, where they are set."""
        return [tensor for tensor in (self._pressure, *(self._gate_weights or {}).values()) if tensor is not None]

    def second_moment(self, gate: Tensor) -> Tensor:
        """Adam's mean of squared gradients of what it updates as `gate`; zeros before the first step."""
        return self.state[gate].get("exp_avg_sq", torch.zeros_like(gate))

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
        torch._foreach_div_(metric, self._correction(group).sqrt().to(metric[0]))
        torch._foreach_add_(metric, group["eps"])
        steps = torch._foreach_div([self.gate_weights[gate] for gate in gates], metric)
        torch._foreach_mul_(steps, self.pressure.to(steps[0].dtype))
        torch._foreach_clamp_max_(steps, 1.0)
        torch._foreach_mul_(steps, group["lr"])
        sizes = torch._foreach_abs(gates)
        torch._foreach_sub_(sizes, steps)
        torch._foreach_clamp_min_(sizes, 0.0)
        torch._foreach_copy_(gates, torch._foreach_mul(torch._foreach_sign(gates), sizes))

    def _correction(self, group: dict) -> Tensor:
        """1 − β₂ᵗ, 0-dimensional and float64, on the device of the step count t."""
        return 1 - group["betas"][1] ** self.state[group["params"][0]]["step"].double()
