"""The dtype of a matrix product under autocast, and products outside of it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

NO_AUTOCAST = ("meta",)  # torch ends with an error if it is asked about them


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Within this block tensors on the device of x are multiplied in their own dtype."""
    device_type = x.device.type
    return nullcontext() if device_type in NO_AUTOCAST else torch.autocast(device_type, enabled=False)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which x is multiplied: autocast's dtype, or that of x if autocast is off or x is float64."""
    device_type = x.device.type
    if device_type in NO_AUTOCAST:
        return x.dtype
    if torch.is_autocast_enabled(device_type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device_type)
    return x.dtype
