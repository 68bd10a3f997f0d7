"""GPUs, memory and shared memory of one host."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from comera_dist.doctor.finding import Finding, Grade

SHARED_MEMORY = Path("/dev/shm")  # torch and NCCL exchange data through it
LEAST_SHARED_BYTES = 256 << 20  # chosen: containers begin with 64 MiB, which is too little for NCCL's buffers


def machine() -> Iterator[Finding]:
    """The findings of the host of this process."""
    yield from gpus()
    memory = psutil.virtual_memory()
    yield Finding("memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available")
    yield shared_memory(SHARED_MEMORY)


def gpus() -> Iterator[Finding]:
    """One finding for each GPU that torch sees, or one that there is none."""
    if not torch.cuda.is_available():
        has_driver = shutil.which("nvidia-smi") is not None
        if has_driver:
            yield Finding(
                "GPU",
                f"nvidia-smi is here, and torch {torch.__version__} sees no GPU",
                Grade.BROKEN,
                "install a build of torch for CUDA, or see CUDA_VISIBLE_DEVICES",
            )
        else:
            yield Finding("GPU", "none, runs train on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        facts, free = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)[0]
        found = f"{facts.name}, {free / 2**30:.0f} of {facts.total_memory / 2**30:.0f} GiB free"
        if free < facts.total_memory / 2:
            yield Finding(f"GPU {index}", found, Grade.DOUBTFUL, "another program holds its memory: see nvidia-smi")
        else:
            yield Finding(f"GPU {index}", found)


def shared_memory(folder: Path) -> Finding:
    """Whether the file system `folder` has room for the exchange between processes of a host."""
    if not folder.is_dir():
        return Finding("shared memory", f"{folder} is missing", Grade.DOUBTFUL, f"mount a tmpfs at {folder}")
    size = shutil.disk_usage(folder).total
    found = f"{size / 2**20:,.0f} MiB at {folder}"
    if size < LEAST_SHARED_BYTES:
        return Finding("shared memory", found, Grade.DOUBTFUL, "start the container with --shm-size=1g or --ipc=host")
    return Finding("shared memory", found)
