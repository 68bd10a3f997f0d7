"""Parameter groups and the optimizer."""

import torch
from torch import nn

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


def build_optimizer(model: nn.Module, config: Optim) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameter_groups(model, config), lr=config.lr, betas=config.betas, eps=config.eps)


def set_learning_rate(param_groups: list[dict], lr: float) -> None:
    for group in param_groups:
        group["lr"] = lr * group["lr_scale"]
