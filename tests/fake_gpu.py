"""Tensors without values that the package takes for tensors on a GPU.

Tensors without values, which torch calls fake, raise where the program depends on a value or a shape depends on one.
They live on the CPU, whose backward pass runs without a GPU, and tell our own code that they are on one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from comera_dist.ops import liger

CUDA = torch.device("cuda", 0)
_true_device = FakeTensor.device


@contextmanager
def fake_gpu() -> Iterator[FakeTensorMode]:
    """Within this block tensors have no values, and `device` of one is CUDA for the package and tests.

    Kernels of Triton are not used, because they need a driver.
    """
    with (
        patch.object(liger, "liger_is_installed", lambda: False),
        patch.object(FakeTensor, "device", property(_device)),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        _CudaMeansCpu(),
    ):
        yield mode


def _device(tensor: FakeTensor) -> torch.device:
    asked_by_us = sys._getframe(1).f_globals["__name__"].startswith(("comera_dist.", "test_"))
    return CUDA if asked_by_us else _true_device.fget(tensor)


class _CudaMeansCpu(TorchFunctionMode):
    """Functions that are asked for a tensor on the GPU make one on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == torch.Tensor.is_cuda.__get__:
            return True
        kwargs = {key: self._real(value) for key, value in (kwargs or {}).items()}
        return function(*map(self._real, args), **kwargs)

    @staticmethod
    def _real(value):
        return torch.device("cpu") if value == CUDA else value
