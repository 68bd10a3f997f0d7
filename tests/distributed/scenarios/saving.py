"""Checkpoints: on a disk that fails, of weights that have parted, and how long a step waits for them."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from benchmarks.saving import measured
from comera_dist.checkpoints import write
from comera_dist.errors import ComeraError
from comera_dist.runtime.agreement import check_alike
from scenarios.adapting import change_gate
from scenarios.runs import open_run, train_runs


def parted_weights(processes, process: int) -> list[str]:
    """What is said of weights that are alike on all processes, and of a last bit that `process` has changed."""
    weights, said = {name: torch.full((3, 5), 0.1) for name in "abc"}, []
    for parts in (False, True):
        if parts and processes.index == process:
            weights["b"].view(torch.int32)[2, 4] += 1
        try:
            check_alike(weights, processes)
            said.append("alike")
        except ComeraError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def train_on_slow_disk(processes, overrides: list[str]) -> list[int]:
    """As train_runs, with a disk that needs longer for a checkpoint than the run for the steps until the next."""
    write_shard = write._write_shard

    def write_slowly(*arguments):
        time.sleep(0.5)
        return write_shard(*arguments)

    with mock.patch.object(write, "_write_shard", write_slowly):
        return train_runs(processes, [overrides])


def save_with_faults(processes, runs: list[dict]) -> list[str]:
    return [save_with_fault(processes, **run) for run in runs]


def save_with_fault(processes, overrides: list[str], fault: str, process: int) -> str:
    """Saves after a step; then disturbs one process and saves after another; returns the error that ends that.

    `weight` changes the last bit of one number that the process's next forward reads, `adapting gate` that of a gate,
    and for `disk` files of the process end after 100 bytes.
    """
    session = open_run(processes, overrides)
    session.train_step(False)
    session.save()
    session.note_saved(is_needed=True)
    session.train_step(False)
    is_disturbed = processes.index == process
    if is_disturbed and fault == "weight":
        weight = session.model.engine.model.model.norm.weight.data
        weight.view(torch.int32)[3] += 1
    if is_disturbed and fault == "adapting gate":
        change_gate(session.model.engine, "model.layers.0.mlp.up_proj", bond=2, index=1, by=1e-6)
    try:
        with longest_file(100 if is_disturbed and fault == "disk" else resource.RLIM_INFINITY):
            session.save()
            session.note_saved(is_needed=True)
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        session.close()


def measure_saves(processes, overrides: list[str]) -> list[dict]:
    """The rows of benchmarks/saving.py."""
    session = open_run(processes, overrides)
    rows = measured(session, turns=1)
    session.close()
    return rows


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """While entered, a write beyond so many bytes fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
