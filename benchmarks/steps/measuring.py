"""Measures the sides of a case: their first steps one after the other, then their times in turn."""

import gc

import torch

from benchmarks.report import milliseconds, times_in_turn
from benchmarks.steps.cases import Case, Side
from benchmarks.steps.figures import Result, counted_flops, gradient_bytes, state_bytes
from comera_dist.errors import ConfigError
from comera_dist.runtime.processes import Processes

WARM_UP = {"cpu": 1, "cuda": 2}  # steps; on a GPU the last of them has the peak of memory


def measure(case: Case, processes: Processes, failures: list[str]) -> list[Result]:
    """A Result for each side. A side that fails in its first steps is left out and named in `failures`."""
    flops: dict[str, int] = {}
    results = []
    for sides in case.sides_in_turn(processes.device.type):
        results += _measure_in_turn(case, sides, processes, flops, failures)
        free_memory()
    return results


def free_memory() -> None:
    """Frees the sides that are closed: an engine and its model hold each other."""
    gc.collect()
    torch.cuda.empty_cache()


def _measure_in_turn(
    case: Case, sides: list[Side], processes: Processes, flops: dict[str, int], failures: list[str]
) -> list[Result]:
    device = processes.device
    subjects, peaks = _opened(case, sides, processes)
    for side in list(subjects):
        before, failure = _held(), None
        try:
            _first_step(side, subjects[side], flops)
            for _ in range(1, WARM_UP[device.type]):
                _held()  # the first step, in which libraries choose and graphs are captured, is no part of the peak
                subjects[side].step()
            peaks[side] += _peak() - before
        except RuntimeError as error:
            failure = str(error).splitlines()[0]
        if failure is not None:  # the error, which refers to the step's tensors, is gone
            failures.append(f"{case.name}, {side.name}: {failure}")
            subjects.pop(side).close()
    calls = {side: lambda subject=subject: milliseconds(subject.step, device) for side, subject in subjects.items()}
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
        for side, subject in subjects.items()
    ]
    for subject in subjects.values():
        subject.close()
    return results


def _opened(case: Case, sides: list[Side], processes: Processes) -> tuple[dict, dict[Side, int]]:
    """The sides that can be opened and fit the device, and the bytes that torch holds for each on a GPU."""
    from benchmarks.steps.sides import open_side

    subjects, held = {}, {}
    for side in sides:
        before = _held()
        try:
            subjects[side] = open_side(case, side, processes)
        except (ConfigError, torch.OutOfMemoryError) as error:
            print(f"{case.name} without {side.name}: {str(error).splitlines()[0]}.", flush=True)
            continue
        held[side] = _held() - before
    return subjects, held


def _first_step(side: Side, subject, flops: dict[str, int]) -> None:
    """A step; if it is the first one of its model, which is eager, its FLOPs are counted.

    RuntimeError if it made no update: the engine leaves out steps whose loss is not finite.
    """
    if side.model in flops:
        subject.step()
    else:
        flops[side.model] = counted_flops(subject.step)
    if not state_bytes(subject.optimizer):
        raise RuntimeError("no update was made, because the loss is not finite")


def _held() -> int:
    """Bytes that torch holds on the GPU and cannot give back; `_peak` begins anew.

    Unlike allocated bytes they include the memory in which a graph computes its intermediate results.
    """
    if not torch.cuda.is_available():
        return 0
    free_memory()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_reserved()


def _peak() -> int:
    return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
