"""The processes of a run: how they start, communicate and leave."""

import os
import re
import socket
import sys
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from comera_dist.errors import LaunchError, MeetingError, first_line
from comera_dist.ops.cpu_products import use_fastest_products
from comera_dist.runtime.endings import alive, end
from comera_dist.runtime.launchers import Place, find_place
from comera_dist.runtime.memory import keep_freed_memory
from comera_dist.runtime.network import NAME_SECONDS, choose_interface, wait_for_name
from comera_dist.runtime.threads import share_threads

T = TypeVar("T")

# Chosen: the watchdog comes first, because it says a sentence; a collective's own timeout is a traceback.
COLLECTIVE_MARGIN_SECONDS = 60
LOOPBACK = "lo"  # Linux's name of the interface that no other host reaches


@dataclass(frozen=True)
class Processes:
    """All processes of the run, as process `index` of `count` sees them, and its device.

    A collective method must be called on every process; its return counts as progress. A single process communicates
    with nobody, so it needs no process group.
    """

    index: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def here(self) -> str:
        """This process in words, for an error that not all processes meet."""
        return f"process {self.index} of host {socket.gethostname()}"

    def sum(self, values: list[float]) -> list[float]:
        """Sums each number over all processes, in float64. Collective."""
        total: list[float] = self._reduced(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()
        return total

    def broadcast(self, values: Tensor, source: int) -> Tensor:
        """The `source` process's tensor; on others `values` only gives shape, type and device. Collective."""
        sent = values.to(self.device).contiguous()
        if self.count > 1:
            dist.broadcast(sent, src=source)
        alive()
        return sent.to(values.device)

    def spread(self, values: Tensor) -> float:
        """Largest difference of any element between two processes. Collective."""
        bounds = self._reduced(torch.stack((values, -values)).to(self.device), ReduceOp.MAX)
        return float((bounds[0] + bounds[1]).max())

    def are_alike(self, values: Tensor) -> Tensor:
        """Whether each int64 is the same on all processes (bool). Collective."""
        # The largest ~x is ~ of the smallest x, also where -x would overflow.
        bounds = self._reduced(torch.stack((values, ~values)).to(self.device), ReduceOp.MAX)
        return bounds[0] == ~bounds[1]

    def sum_tensor(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in its dtype and on its device. Collective."""
        return self._reduced(values.to(self.device, copy=True)).to(values.device)

    def max(self, value: float) -> float:
        """The largest of all processes' numbers. Collective."""
        return float(self._reduced(torch.tensor(value, dtype=torch.float64, device=self.device), ReduceOp.MAX))

    def gather(self, thing: T) -> list[T]:
        """One small picklable thing from each process, in order of index. Collective."""
        things = [thing] * self.count
        if self.count > 1:
            dist.all_gather_object(things, thing)
        alive()
        return things

    def from_first(self, thing: T) -> T:
        """The first process's picklable thing, on every process. Collective."""
        box = [thing]
        if self.count > 1:
            dist.broadcast_object_list(box, src=0, device=self.device)
        alive()
        return box[0]

    def barrier(self) -> None:
        """Waits for all processes. Collective."""
        self.sum([0.0])  # unlike torch's barrier it works alike on gloo and NCCL

    def claims(self, name: str, without_first: bool = False) -> bool:
        """Whether this process is the first of all to claim `name`, e.g. the right to print; not collective.

        `without_first` is the answer if the first process, which keeps the list, is gone.
        """
        if self.count == 1:
            return True
        try:
            return bool(dist.distributed_c10d._get_default_store().add(name, 1) == 1)
        except RuntimeError:
            return without_first

    def say(self, text: str) -> None:
        """Prints on the first process only."""
        if self.is_first:
            print(text, flush=True)

    def _reduced(self, tensor: Tensor, operation: ReduceOp.RedOpType = ReduceOp.SUM) -> Tensor:
        """`tensor`, reduced in place over all processes."""
        if self.count > 1:
            dist.all_reduce(tensor, op=operation)
        alive()
        return tensor


def alone() -> Processes:
    """This process by itself, whatever a launcher says: no process group, and nothing of the program is changed."""
    return Processes(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def start_processes(timeout_seconds: int = 1800, needs_group: bool = True) -> Processes:
    """Joins the process group that the launcher's variables describe. Collective.

    A single process makes a group of its own, because DeepSpeed needs one, unless `needs_group` is False. A collective
    fails a minute after the watchdog, which ends a process without progress for `timeout_seconds`. LaunchError if the
    variables are incomplete or processes share a GPU, MeetingError if the processes do not meet.
    """
    place, on_gpu = find_place(), torch.cuda.is_available()
    if on_gpu:  # a scheduler may show every process only a GPU of its own
        place = replace(place, local=place.local % torch.cuda.device_count())
    os.environ.update(place.variables())
    if not sys.warnoptions:
        # These warnings are about the libraries' own code and would stand between the lines of the console.
        warnings.filterwarnings("ignore", module=r"(torch|deepspeed)\.")
    device = torch.device("cuda", place.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        tune_cpu()
    if (needs_group or place.count > 1) and not dist.is_initialized():
        if place.count > 1:
            wait_for_name(place.address, min(NAME_SECONDS, timeout_seconds / 2))  # before the watchdog's sentence
        _join(place, device, timedelta(seconds=timeout_seconds + COLLECTIVE_MARGIN_SECONDS))
    return Processes(place.index, place.count, device)


def tune_cpu() -> None:
    """The allocator and the matrix products of this process become those of a run on a CPU."""
    keep_freed_memory()
    use_fastest_products()


def _join(place: Place, device: torch.device, timeout: timedelta) -> None:
    if place.count == 1 and LOOPBACK in (name for _, name in socket.if_nameindex()):
        # gloo listens also for a single process, otherwise at the address that the host's name has.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    store: Any = dist.HashStore() if place.count == 1 else None  # type: ignore[attr-defined]  # missing in torch's list
    interface = choose_interface(place.address)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=place.index, world_size=place.count, timeout=timeout)
        if backend == "nccl" and place.count > 1:
            gpu = str(torch.cuda.get_device_properties(device).uuid)
            check_own_gpu(gpu, place.count, dist.distributed_c10d._get_default_store())
        elif place.count > 1:
            share_threads(Processes(place.index, place.count, device))
    except RuntimeError as error:
        raise MeetingError(
            f"process {place.index} of {place.count} does not meet the others at {place.address}:{place.port} "
            f"({_without_source(error)}); see that the address is the first process's, the port free, and "
            f"GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME unset or the interface between the hosts"
        ) from error


def check_own_gpu(gpu: str, count: int, store: Any) -> None:
    """LaunchError on all `count` processes if two of them have the same GPU, by its UUID. Collective.

    By the store, because NCCL cannot be asked: it fails, or hangs, if processes share a GPU.
    """
    if store.add(f"processes of GPU {gpu}", 1) > 1:
        store.add("processes without a GPU of their own", 1)
    if store.add("processes that told their GPU", 1) == count:
        store.set("without a GPU, of all", str(store.add("processes without a GPU of their own", 0)))
    without = int(store.get("without a GPU, of all"))  # waits for the last one
    if without:
        raise LaunchError(
            f"{without} of {count} processes found no GPU that no other process has, expected one for each; start no "
            f"more processes on a host than it has GPUs, or see CUDA_VISIBLE_DEVICES"
        )


def lost_partner(error: RuntimeError) -> str | None:
    """Why a collective failed if another process is the reason, which has usually ended; otherwise None."""
    is_theirs = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
    return _without_source(error) if is_theirs else None


def _without_source(error: Exception) -> str:
    """The error's first line without the position in gloo's or torch's source that it begins with."""
    return re.sub(r"^\[[^\]]*\.(cc|cpp|h):\d+\] ", "", first_line(error))


def leave(processes: Processes, status: int) -> NoReturn:
    """Ends this process with `status` after all have arrived. Collective."""
    processes.barrier()
    end(status)
