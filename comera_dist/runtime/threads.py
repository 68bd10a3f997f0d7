"""The threads of torch's operations on a CPU."""

import os
import socket
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from comera_dist.runtime.processes import Processes


def share_threads(processes: "Processes") -> None:
    """Divides torch's threads among the processes that may run on the same cores. Collective.

    torch takes a thread for each core that a process may use, as if it were alone there. The user's OMP_NUM_THREADS
    stays; torchrun sets it to 1.
    """
    # Launchers may bind processes to cores of their own. macOS has no such sets: a process may use all cores.
    cores = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    mine = (socket.gethostname(), cores)
    sharers = processes.gather(mine).count(mine)
    if sharers > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // sharers))
