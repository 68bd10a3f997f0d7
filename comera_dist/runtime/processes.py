"""The processes of a run: how they start, what they agree on, how they leave.

One process without a launcher is the same as one process with it.
"""

import os
import re
import sys
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from comera_dist.errors import LaunchError, first_line
from comera_dist.runtime.endings import alive, end
from comera_dist.runtime.launchers import Place, find_place
from comera_dist.runtime.memory import keep_freed_memory

# By which a collective may wait longer than the watchdog: its failure is a traceback, the watchdog's word a sentence.
COLLECTIVE_MARGIN_SECONDS = 60


@dataclass(frozen=True)
class Processes:
    """This process among its equals: `index` of `count`, and its device.

    A single process makes no collective, so it needs no process group. A collective that has come back is progress,
    because all processes took part in it.
    """

    index: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def sum(self, values: list[float]) -> list[float]:
        """Sums each number over all processes, in float64. Collective."""
        return self._reduced(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def broadcast(self, values: torch.Tensor, source: int) -> torch.Tensor:
        """The `source` process's tensor, on every process; elsewhere `values` only gives shape, type and device."""
        sent = values.to(self.device).contiguous()
        if self.count > 1:
            dist.broadcast(sent, src=source)
        alive()
        return sent.to(values.device)

    def spread(self, values: torch.Tensor) -> float:
        """Largest difference of any element between two processes. Collective."""
        bounds = self._reduced(torch.stack((values, -values)).to(self.device), dist.ReduceOp.MAX)
        return float((bounds[0] + bounds[1]).max())

    def are_alike(self, values: torch.Tensor) -> torch.Tensor:
        """Whether each int64 is the same on all processes (bool). Collective."""
        # Of ~x the largest is ~ of the smallest x, also where -x would overflow.
        bounds = self._reduced(torch.stack((values, ~values)).to(self.device), dist.ReduceOp.MAX)
        return bounds[0] == ~bounds[1]

    def sum_tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over all processes in its own precision, on the device; returns it where it came from."""
        return self._reduced(values.to(self.device, copy=True)).to(values.device)

    def max(self, value: float) -> float:
        """The largest of all processes' numbers. Collective."""
        return float(self._reduced(torch.tensor(value, dtype=torch.float64, device=self.device), dist.ReduceOp.MAX))

    def gather(self, thing) -> list:
        """One picklable thing from each process, in order of index. Collective; for small records only."""
        things = [thing] * self.count
        if self.count > 1:
            dist.all_gather_object(things, thing)
        alive()
        return things

    def from_first(self, thing):
        """The first process's thing, on every process. Collective."""
        box = [thing]
        if self.count > 1:
            dist.broadcast_object_list(box, src=0, device=self.device)
        alive()
        return box[0]

    def barrier(self) -> None:
        # A sum of nothing waits as a barrier does, and works alike on gloo and NCCL.
        self.sum([0.0])

    def claims(self, name: str, without_first: bool = False) -> bool:
        """Whether this process is the first of all to ask for `name`, e.g. for the word; not collective.

        `without_first` is the answer where the first process, which keeps the list, is gone.
        """
        if self.count == 1:
            return True
        try:
            return dist.distributed_c10d._get_default_store().add(name, 1) == 1
        except RuntimeError:
            return without_first

    def say(self, text: str) -> None:
        """Prints once, whatever the number of processes."""
        if self.is_first:
            print(text, flush=True)

    def _reduced(self, tensor: torch.Tensor, operation: dist.ReduceOp = dist.ReduceOp.SUM) -> torch.Tensor:
        """`tensor`, reduced in place over all processes."""
        if self.count > 1:
            dist.all_reduce(tensor, op=operation)
        alive()
        return tensor


def alone() -> Processes:
    """This process by itself, whatever a launcher says: no process group, and nothing of the program is changed."""
    return Processes(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def start_processes(timeout_seconds: int = 1800, needs_group: bool = True) -> Processes:
    """Joins the process group that the launcher's variables describe.

    A single process makes a group of its own, which DeepSpeed asks for, unless `needs_group` is False. A watchdog ends
    a process that makes no progress for `timeout_seconds`; a collective fails somewhat later. Raises LaunchError where
    the variables are half set or the processes do not meet.
    """
    place, on_gpu = find_place(), torch.cuda.is_available()
    if on_gpu:  # a scheduler may show every process a GPU of its own only
        place = replace(place, local=place.local % torch.cuda.device_count())
    os.environ.update(place.variables())
    if not sys.warnoptions:
        _quiet_libraries()
    if not on_gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        keep_freed_memory()
    device = torch.device("cuda", place.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if (needs_group or place.count > 1) and not dist.is_initialized():
        _join(place, "nccl" if on_gpu else "gloo", timedelta(seconds=timeout_seconds + COLLECTIVE_MARGIN_SECONDS))
    return Processes(place.index, place.count, device)


def _quiet_libraries() -> None:
    """Their warnings are about code of their own, and would stand between the lines of the console."""
    warnings.filterwarnings("ignore", module=r"(torch|deepspeed)\.")


def _join(place: Place, backend: str, timeout: timedelta) -> None:
    store = dist.HashStore() if place.count == 1 else None
    try:
        dist.init_process_group(backend, store=store, rank=place.index, world_size=place.count, timeout=timeout)
    except RuntimeError as error:
        raise LaunchError(
            f"process {place.index} of {place.count} does not meet the others at {place.address}:{place.port} "
            f"({_without_place(error)}); see that the address is the first process's and the port free"
        ) from error


def lost_partner(error: RuntimeError) -> str | None:
    """Why a collective failed where another process is the reason, which mostly means that it has ended; else None."""
    is_theirs = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
    return _without_place(error) if is_theirs else None


def _without_place(error: Exception) -> str:
    """Its first line, without the file of gloo or torch that it begins with."""
    return re.sub(r"^\[[^\]]*\.(cc|cpp|h):\d+\] ", "", first_line(error))


def leave(processes: Processes, status: int) -> NoReturn:
    """Ends this process with `status` after all have arrived."""
    processes.barrier()
    end(status)
