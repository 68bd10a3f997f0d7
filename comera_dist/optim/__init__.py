"""Parameter groups, the optimizers, and what they keep of each parameter."""

from comera_dist.optim.build import build_optimizer
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.optim.groups import check_cover, parameter_groups, set_learning_rate
from comera_dist.optim.state import MOMENTS, blank_state, kept_tensors, open_state

__all__ = [
    "MOMENTS",
    "GateAdamW",
    "blank_state",
    "build_optimizer",
    "check_cover",
    "kept_tensors",
    "open_state",
    "parameter_groups",
    "set_learning_rate",
]
