"""Measures the sides of a case: their first steps one after the other, then their times in turn."""

import torch

from benchmarks.report import milliseconds, times_in_turn
from benchmarks.steps.cases import Case, Side
from benchmarks.steps.figures import Result, counted_flops, gradient_bytes, state_bytes
from comera_dist.errors import ConfigError
from comera_dist.runtime.processes import Processes

WARM_UP = {"cpu": 1, "cuda": 2}  # steps


def opened(case: Case, processes: Processes) -> tuple[dict, dict[Side, int]]:
    """The sides of a case that can be opened and fit the device, and the bytes that each allocated on a GPU."""
    from benchmarks.steps.sides import open_side

    sides, allocated = {}, {}
    for side in case.sides(processes.device.type):
        before = _allocated()
        try:
            sides[side] = open_side(case, side, processes)
        except (ConfigError, torch.OutOfMemoryError) as error:
            print(f"{case.name} without {side.name}: {str(error).splitlines()[0]}.", flush=True)
            continue
        allocated[side] = _allocated() - before
    return sides, allocated


def measure(case: Case, processes: Processes, failures: list[str]) -> list[Result]:
    """A Result for each side. A side that fails in its first steps is left out and named in `failures`."""
    device = processes.device
    sides, peaks = opened(case, processes)
    flops: dict[str, int] = {}
    for side in list(sides):
        before = _restarted_peak()
        try:
            first_steps(side, sides[side], flops, WARM_UP[device.type])
        except RuntimeError as error:
            failures.append(f"{case.name}, {side.name}: {str(error).splitlines()[0]}")
            del sides[side]
            continue
        if device.type == "cuda":
            peaks[side] += torch.cuda.max_memory_allocated() - before
    calls = {side: lambda subject=subject: milliseconds(subject.step, device) for side, subject in sides.items()}
    times = times_in_turn(calls, 0, case.repeats[device.type])
    results = [
        Result(
            side,
            sum(p.numel() for p in subject.model.parameters()),
            case.sequences[device.type] * case.seq_len,
            times[side],
            flops[side.model],
            state_bytes(subject.optimizer),
            gradient_bytes(subject.model),
            peaks[side] if device.type == "cuda" else None,
        )
        for side, subject in sides.items()
    ]
    for subject in sides.values():
        subject.close()
    return results


def first_steps(side: Side, subject, flops: dict[str, int], count: int) -> None:
    """Warms the side up; if it is the first side of its model, which is eager, counts the model's FLOPs.

    RuntimeError if no step made an update: the engine leaves out steps whose loss is not finite.
    """
    if side.model in flops:
        subject.step()
    else:
        flops[side.model] = counted_flops(subject.step)
    for _ in range(1, count):
        subject.step()
    if not state_bytes(subject.optimizer):
        raise RuntimeError("no update was made, because the loss is not finite")


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _restarted_peak() -> int:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    return _allocated()
