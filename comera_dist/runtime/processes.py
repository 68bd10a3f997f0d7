"""The processes of a run: how they start, what they agree on, how they leave.

One process without a launcher is the same as one process with it.
"""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from comera_dist.runtime.memory import keep_freed_memory

# Set by every launcher (deepspeed, torchrun, srun recipes); the defaults are those of a single process.
SINGLE_PROCESS = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


@dataclass(frozen=True)
class Processes:
    """This process among its equals: `index` of `count`, and its device."""

    index: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def sum(self, values: list[float]) -> list[float]:
        """Sums each number over all processes, in float64. Collective."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def broadcast(self, values: torch.Tensor, source: int) -> torch.Tensor:
        """The `source` process's tensor, on every process; elsewhere `values` only gives shape, type and device."""
        sent = values.to(self.device).contiguous()
        dist.broadcast(sent, src=source)
        return sent.to(values.device)

    def spread(self, values: torch.Tensor) -> float:
        """Largest difference of any element between two processes. Collective."""
        bounds = torch.stack((values, -values)).to(self.device)
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
        return float((bounds[0] + bounds[1]).max())

    def are_alike(self, values: torch.Tensor) -> torch.Tensor:
        """Whether each int64 is the same on all processes (bool). Collective."""
        # Of ~x the largest is ~ of the smallest x, also where -x would overflow.
        bounds = torch.stack((values, ~values)).to(self.device)
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
        return bounds[0] == ~bounds[1]

    def sum_tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over all processes in its own precision, on the device; returns it where it came from."""
        total = values.to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def max(self, value: float) -> float:
        """The largest of all processes' numbers. Collective."""
        largest = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def gather(self, thing) -> list:
        """One picklable thing from each process, in order of index. Collective; for small records only."""
        things = [None] * self.count
        dist.all_gather_object(things, thing)
        return things

    def from_first(self, thing):
        """The first process's thing, on every process. Collective."""
        box = [thing]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def barrier(self) -> None:
        # A sum of nothing waits as a barrier does, and works alike on gloo and NCCL.
        self.sum([0.0])

    def say(self, text: str) -> None:
        """Prints once, whatever the number of processes."""
        if self.is_first:
            print(text, flush=True)


def share_out(sizes: dict[str, int], count: int) -> dict[str, int]:
    """An owner among `count` processes for each named thing, sizes spread evenly; alike on all processes."""
    filled, owners = [0] * count, {}
    for name, size in sizes.items():
        owners[name] = filled.index(min(filled))
        filled[owners[name]] += size
    return owners


def start_processes(timeout_seconds: int = 1800) -> Processes:
    """Joins the process group that the launcher's environment describes, or makes one of a single process.

    A collective that waits longer than `timeout_seconds` fails instead of hanging.
    """
    launched = "RANK" in os.environ
    for key, value in SINGLE_PROCESS.items():
        os.environ.setdefault(key, value)
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        keep_freed_memory()
    index, count, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=None if launched else dist.HashStore(),
            rank=index,
            world_size=count,
            timeout=timedelta(seconds=timeout_seconds),
        )
    return Processes(index, count, device)


def leave(processes: Processes, status: int) -> None:
    """Ends this process with `status` after all have arrived.

    Skips the interpreter's tear-down: DeepSpeed 0.19.8 at ZeRO stage 3 on gloo sometimes aborts in it after all work is
    done, which would turn a finished run into a failed one.
    """
    processes.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
