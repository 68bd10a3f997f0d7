"""Memory of this process."""

import resource

import torch


def peak_memory_bytes() -> int:
    """Peak of the GPU's allocator where there is one, else the process's peak resident set (Linux counts it in KiB)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
