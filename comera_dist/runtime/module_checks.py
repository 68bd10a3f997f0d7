"""Refuses modules and optimizers that were handed in and that a checkpoint would not hold as they are."""

from collections.abc import Container

import torch
from torch import Tensor, nn

from comera_dist.errors import ConfigError


def check_measures(model: nn.Module) -> None:
    """ConfigError for a model without a function `measure`, which is a plain module whose forward returns no loss."""
    if not callable(getattr(model, "measure", None)):
        raise ConfigError(
            f"the model {type(model).__name__} has no function measure, expected a forward that returns the summed "
            f"loss of a batch and a measure that returns figures by name; add both, as examples/own_module.py does"
        )


def check_parameters(model: nn.Module) -> None:
    """ConfigError for a parameter that is not in fp32 or not trained: checkpoints hold fp32 weights and moments."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"the parameter {name} is in {parameter.dtype}, expected torch.float32; hand in model.float(), and set "
                f"the precision of products by train.precision"
            )
        if not parameter.requires_grad:
            raise ConfigError(
                f"the parameter {name} is frozen, and all parameters are trained; register it as a buffer, or train it"
            )


def check_optimized(model: nn.Module, optimized: Container[nn.Parameter]) -> None:
    """ConfigError for a parameter that the optimizer does not have."""
    for name, parameter in model.named_parameters():
        if parameter not in optimized:
            raise ConfigError(
                f"the optimizer does not have the parameter {name}; give it all parameters of the model, in groups if "
                f"they want other settings"
            )


class ConstantBuffers:
    """The buffers of a model, which a checkpoint leaves to the code that makes the model."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._first = {name: buffer.detach().clone() for name, buffer in _lasting(model).items()}

    def check(self) -> None:
        """ConfigError for a buffer that has changed, if the module would save it."""
        for name, buffer in _lasting(self._model).items():
            if not torch.equal(buffer, self._first[name]):
                raise ConfigError(
                    f"a step changed the buffer {name}, which checkpoints do not hold; take layers without running "
                    f"statistics, such as LayerNorm, or register it with persistent=False"
                )


def _lasting(model: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers by name."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in parameters}
