"""The connection between the processes: hosts, clocks, the rendezvous port, and the speed of an all-reduce."""

import platform
import socket
import statistics
import time
from collections import Counter
from collections.abc import Iterator

import torch

from comera_dist.doctor.finding import Finding, Grade
from comera_dist.runtime.launchers import USUAL_PORT
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.software import software

NUMBERS = 4 << 20  # of an all-reduce: 16 MiB, as gradients of a small model
REPEATS = 5
LARGEST_CLOCK_SECONDS = 2.0  # chosen: more makes log lines of two hosts hard to compare


def network(processes: Processes) -> Iterator[Finding]:
    """Collective."""
    hosts = Counter(processes.gather(socket.gethostname()))
    yield Finding("hosts", ", ".join(f"{host}: {count} process(es)" for host, count in hosts.items()))
    if processes.count == 1:
        yield _port(USUAL_PORT)
        return
    yield _versions(processes)
    yield _clocks(processes)
    yield _all_reduce(processes)


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            remedy = "set MASTER_PORT, or --master_port of the launcher, to a free one"
            return Finding("port", f"{port} cannot be used ({error.strerror})", Grade.DOUBTFUL, remedy)
    return Finding("port", f"{port}, torch's default, is free")


def _versions(processes: Processes) -> Finding:
    """Whether all processes have the same Python, the same packages that change a run's numbers, and the same code.

    Collective.
    """
    all_processes = processes.gather({"Python": platform.python_version(), **software()})
    found = {name: list(dict.fromkeys(one[name] for one in all_processes)) for name in all_processes[0]}
    differing = [f"{name}: {', '.join(versions)}" for name, versions in found.items() if len(versions) > 1]
    if differing:
        return Finding(
            "versions", "; ".join(differing), Grade.BROKEN, "install the same packages and code on all hosts"
        )
    return Finding("versions", "the same on all processes")


def _clocks(processes: Processes) -> Finding:
    processes.barrier()
    times = processes.gather(time.time())
    apart = max(times) - min(times)
    if apart > LARGEST_CLOCK_SECONDS:
        return Finding("clocks", f"{apart:.1f} s apart", Grade.DOUBTFUL, "set the clocks of the hosts by NTP")
    return Finding("clocks", f"within {apart:.2f} s")


def _all_reduce(processes: Processes) -> Finding:
    """The bandwidth of one process's link, as NCCL's tests define it: 2 (n - 1) / n · bytes / seconds."""
    ones, seconds = torch.ones(NUMBERS, device=processes.device), []
    for _ in range(1 + REPEATS):
        processes.barrier()
        started = time.perf_counter()
        total = processes.sum_tensor(ones)
        right = bool((total == processes.count).all())  # waits for the device
        seconds.append(time.perf_counter() - started)
        if not right:
            return Finding("all-reduce", "a wrong sum", Grade.BROKEN, "check the network and the memory of the hosts")
    moved = 2 * (processes.count - 1) / processes.count * 4 * NUMBERS
    speed = moved / statistics.median(seconds[1:])
    return Finding("all-reduce", f"{8 * speed / 1e9:.2f} Gbit/s each process, {4 * NUMBERS >> 20} MiB")
