"""Parameter groups and the optimizer."""

import torch
from torch import Tensor, nn

from comera_dist.config import Optim
from comera_dist.tensor.tensor_train import TensorTrain


def parameter_groups(model: nn.Module, config: Optim) -> list[dict]:
    """Groups `cores`, `gates`, `dense` and `no_decay`, each with its learning-rate scale and weight decay.

    Together they hold every parameter exactly once, else an AssertionError (a model with a new kind of parameter).
    """
    members: dict[str, list[nn.Parameter]] = {"cores": [], "gates": [], "dense": [], "no_decay": []}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            members[_group_of(module, name, parameter)].append(parameter)
    check_cover(model, [p for group in members.values() for p in group])
    scale = {"cores": config.core_lr_scale, "gates": config.gate_lr_scale}
    decay = {"cores": config.weight_decay, "dense": config.weight_decay}
    return [
        {
            "name": name,
            "params": parameters,
            "lr": config.lr * scale.get(name, 1.0),
            "lr_scale": scale.get(name, 1.0),
            "weight_decay": decay.get(name, 0.0),
        }
        for name, parameters in members.items()
        if parameters
    ]


def _group_of(module: nn.Module, name: str, parameter: nn.Parameter) -> str:
    if isinstance(module, TensorTrain):
        if name.startswith("core_"):
            return "cores"
        if name.startswith("gate_"):
            return "gates"
    return "dense" if parameter.ndim >= 2 else "no_decay"


def check_cover(model: nn.Module, grouped: list[nn.Parameter]) -> None:
    """AssertionError unless `grouped` is every trainable parameter of the model exactly once."""
    names = {id(p): name for name, p in model.named_parameters()}
    ids = [id(p) for p in grouped]
    missing = [name for key, name in names.items() if key not in set(ids)]
    twice = [names.get(key, "a stranger") for key in set(ids) if ids.count(key) > 1 or key not in names]
    assert not missing, f"parameter groups miss {missing}"
    assert not twice, f"parameter groups repeat or invent {twice}"


class GateAdamW(torch.optim.AdamW):
    """AdamW that also lowers `pressure` · Σ_j weight_j · |g_j| over its group `gates`.

    The penalty is no part of Adam's moments: after Adam's update each gate takes a proximal step of it in Adam's metric
    (Yun, Lozano and Yang 2021, ProxGen), towards 0 by lr · min(1, pressure · weight / √v), and stops there. So the
    second moments v stay those of the loss, where they tell how much a gate matters; clipping does not see the penalty;
    and a gate at 0 comes back when the loss pulls harder than one step of the pressure.

    Without `pressure` it is AdamW. The number of operations does not depend on the number of gates.
    """

    pressure: Tensor | None = None  # 0-dimensional
    gate_weights: list[Tensor] | None = None  # shaped like what the group holds where this optimizer steps

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


def build_optimizer(model: nn.Module, config: Optim, adapts_ranks: bool = False) -> torch.optim.AdamW:
    kind = GateAdamW if adapts_ranks else torch.optim.AdamW
    return kind(parameter_groups(model, config), lr=config.lr, betas=config.betas, eps=config.eps)


def set_learning_rate(param_groups: list[dict], lr: float) -> None:
    for group in param_groups:
        group["lr"] = lr * group["lr_scale"]
