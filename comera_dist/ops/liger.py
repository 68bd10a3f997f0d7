"""Where Liger's kernels for GPUs are used (Hsu et al. 2024, arXiv 2410.10989), an optional package."""

import functools
import importlib.util

import torch

LIGER_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # not float64: its kernels compute in fp32


def has_liger(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether its kernels run on the device in this dtype. A model that is compiled has kernels of torch's own."""
    fits = device.type == "cuda" and dtype in LIGER_DTYPES
    return fits and not torch.compiler.is_compiling() and liger_is_installed()


@functools.cache
def liger_is_installed() -> bool:
    return importlib.util.find_spec("liger_kernel") is not None
