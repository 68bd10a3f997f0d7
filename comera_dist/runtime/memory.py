"""Memory of this process."""

import contextlib
import ctypes
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from comera_dist.errors import ConfigError, TrainingError

# What torch says on a CPU, where it has no error of its own for it.
NO_MEMORY = ("can't allocate memory", "Storage size calculation overflowed")
STATUS = Path("/proc/self/status")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


def check_fits(what: str, needed: int, device: torch.device) -> None:
    """ConfigError where `what` takes more bytes than there are, so that nothing else is tried in vain."""
    if needed > (held := _memory_bytes(device)):
        place = "GPU" if device.type == "cuda" else "machine"
        raise ConfigError(
            f"{what} would take {needed / 2**30:,.1f} GiB on each process, and this {place} has "
            f"{held / 2**30:,.1f} GiB; lower the sizes of model, tensor or train"
        )


@contextlib.contextmanager
def lack_of_memory_named() -> Iterator[None]:
    """TrainingError in place of torch's error where memory runs out, as it may for activations."""
    try:
        yield
    except RuntimeError as error:
        found = str(error).splitlines()[0]
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in found for words in NO_MEMORY):
            raise
        raise TrainingError(f"memory ran out ({found}); lower train.micro_batch or the sizes of the model") from error


def _memory_bytes(device: torch.device) -> int:
    """All memory of a GPU; of a CPU's machine with what it can swap."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total + psutil.swap_memory().total


def peak_memory_bytes() -> int:
    """Peak of the GPU's allocator where there is one, else the peak resident set of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Peak resident set since this program started.

    Linux: VmHWM, which starts anew with the program; getrusage's ru_maxrss would report the peak of the parent that
    started it, if that was larger. Elsewhere: ru_maxrss, which macOS counts in bytes and others in KiB.
    """
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep_freed_memory() -> None:
    """Keeps freed memory in the process for the next step, where the C library can (glibc).

    By default it gives large buffers back to the kernel, which hands them out again page by page, zeroed: on two cores
    half of the time of a 768 x 3072 layer of rank 30 with 4,096 tokens.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, where the C library keeps it and can let it go (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
