"""Builds the optimizer that a configuration names."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.config.optim_section import Optim
from comera_dist.config.ranks_section import Ranks
from comera_dist.config.registry import OPTIMIZERS
from comera_dist.errors import ConfigError
from comera_dist.optim.adamw import AdamW
from comera_dist.optim.combined import CombinedOptimizer
from comera_dist.optim.groups import parameter_groups
from comera_dist.optim.narrow_state import NarrowStateOptimizer
from comera_dist.optim.saved_state import leave_methods_out


def build_optimizer(model: nn.Module, config: Optim, ranks: Ranks | None = None, captured: bool = False) -> Optimizer:
    """The optimizer that `config.kind` names for the groups that it takes, and AdamW for all others.

    Each group has its `Method` under the key `method`. If `ranks` adapt, AdamW presses on gates (see GateAdamW). With
    `captured`, on a GPU, a step can be part of a CUDA graph, and learning rates are tensors that it reads. Raises
    ConfigError if the optimizer finds nothing to update or is not installed, and for narrow moments of parameters that
    are not in fp32.
    """
    ranks = ranks or Ranks()
    chosen, adamw = OPTIMIZERS[config.kind](config), AdamW(config, ranks.adapt, captured)
    chosen.prepare(model)
    groups = parameter_groups(model, config, ranks.layers)
    for group in groups:
        group["method"] = chosen if group["group"] in chosen.takes else adamw
        device = group["params"][0].device
        if captured and device.type == "cuda":
            group["lr"] = torch.tensor(group["lr"], device=device)
    own, others = ([group for group in groups if group["method"] is method] for method in (chosen, adamw))
    if chosen.takes and not own:
        raise ConfigError(chosen.nothing_to_update)
    parts = [method.build(members) for method, members in ((chosen, own), (adamw, others)) if members]
    optimizer = parts[0]
    if config.moments != "fp32":
        _check_dtypes(model, config)
        optimizer = NarrowStateOptimizer(*parts)
    elif chosen.takes:
        optimizer = CombinedOptimizer(*parts)
    leave_methods_out(optimizer)
    return optimizer


def _check_dtypes(model: nn.Module, config: Optim) -> None:
    """ConfigError for a trained parameter that is not in fp32, in which steps with narrow moments compute."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(
                f"{name} is in {str(parameter.dtype).removeprefix('torch.')}, but optim.moments = {config.moments} "
                f"needs parameters in float32; keep the model in float32 under autocast, or set optim.moments=fp32"
            )


def roles(config: Optim) -> dict[str, str]:
    """Role by kind (see `Method.roles`) of the tensors that a run's optimizers keep in the shape of a parameter."""
    return {**AdamW.roles, **OPTIMIZERS[config.kind].roles}


def open_state(optimizer: Optimizer) -> list[Tensor]:
    """All tensors of the optimizer's state; missing ones are made, so that they exist before a capture reads them."""
    tensors: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state |= group["method"].blank(parameter)
            tensors += state.values()
    return tensors
