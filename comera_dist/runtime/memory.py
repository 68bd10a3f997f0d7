"""Memory of this process."""

import contextlib
import ctypes
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from comera_dist.errors import ConfigError, TrainingError, first_line

# Messages of torch's CPU allocator, which raises a plain RuntimeError.
NO_MEMORY = ("can't allocate memory", "Storage size calculation overflowed")
STATUS = Path("/proc/self/status")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


def check_fits(what: str, needed: int, device: torch.device) -> None:
    """ConfigError if `what` takes more bytes than the GPU, or the machine with its swap space, has."""
    place, held = "machine", psutil.virtual_memory().total + psutil.swap_memory().total
    if device.type == "cuda":
        place, held = "GPU", torch.cuda.get_device_properties(device).total_memory
    if needed > held:
        raise ConfigError(
            f"{what} would take {needed / 2**30:,.1f} GiB on each process, and this {place} has "
            f"{held / 2**30:,.1f} GiB; lower the sizes of model, tensor or train"
        )


@contextlib.contextmanager
def lack_of_memory_named() -> Iterator[None]:
    """Raises TrainingError in place of torch's error if memory runs out, e.g. for activations."""
    try:
        yield
    except RuntimeError as error:
        found = first_line(error)
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in found for words in NO_MEMORY):
            raise
        raise TrainingError(f"memory ran out ({found}); lower train.micro_batch or the sizes of the model") from error


def peak_memory_bytes() -> int:
    """Peak of the GPU's allocator if there is a GPU, else the peak resident set of this process."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Peak resident set since this program started."""
    if STATUS.exists():
        # Linux: VmHWM starts anew with the program; ru_maxrss would include the peak of the parent that started it.
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB


def keep_freed_memory() -> None:
    """Makes the C library (glibc) keep freed memory in the process for the next step.

    By default it returns large buffers to the kernel, which zeroes every page that it hands out again: on two cores
    half of the time of a 768 x 3072 layer of rank 30 with 4,096 tokens.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Returns freed memory to the system, if the C library is glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
