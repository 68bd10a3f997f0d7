"""Parameter groups and the optimizer."""

import warnings

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


def build_optimizer(
    model: nn.Module, config: Optim, adapts_ranks: bool = False, captured: bool = False
) -> torch.optim.AdamW:
    """AdamW for the model's parameters; with `captured`, on a GPU, one whose step can be part of a CUDA graph.

    Its learning rates are tensors then, and its arithmetic differs from the usual one in rounding.
    """
    kind = GateAdamW if adapts_ranks else torch.optim.AdamW
    groups = parameter_groups(model, config)
    device = groups[0]["params"][0].device
    capturable = captured and device.type == "cuda"
    if capturable:
        # The warm-up before a capture is no sign that none will follow.
        warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
        for group in groups:
            group["lr"] = torch.tensor(group["lr"], device=device)
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, capturable=capturable)


def set_learning_rate(param_groups: list[dict], lr: float) -> None:
    for group in param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr * group["lr_scale"])
        else:
            group["lr"] = lr * group["lr_scale"]


def open_state(optimizer: torch.optim.AdamW) -> list[Tensor]:
    """All of AdamW's state. What torch makes in the first step is made now, and is where the step reads it."""
    tensors = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state |= {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            if group["capturable"]:
                state["step"] = state["step"].to(parameter.device)
            tensors += state.values()
    return tensors
