"""Whole training steps, sides of a case in turn in one run: python benchmarks/step.py [CASE ...] [--side SIDE ...]

A step is forward, backward, clipping and AdamW (or spectral descent, where a side says so) on one process with all
cores, in fp32 on a CPU and in bf16 on a GPU. Dense models and ours step through the trainer's engine (ZeRO stage 0).
GaLore and CoMERA's scheme step in a plain torch loop that does the same work without DeepSpeed. GaLore (rank d/4 in the
encoder, its authors' ranks in decoders) never renews its projections here, which favours it. CoMERA's scheme is our
encoder with a layer of `rivals/comera_scheme.py` in place of each tensor train, at the same modes and ranks. Its loss
has the penalty on rank vectors, and each step computes the compressed size, as in its late stage.

Modes besides eager are compiled (two cases; a minute for each side) and, on a GPU, graphed and both. Ratios compare
with dense AdamW in the same mode and in its fastest mode. FLOPs are counted in the first step of an eager side. MFU is
their rate over the rate of a large matrix product, which is measured before. Peak memory is the peak of the second of
two steps: on a CPU of a separate process, on a GPU the device memory that torch holds for the side, graphs included.

A second table, on CPUs, compares steps with adapting and with fixed ranks (the case `bookkeeping`). With CASE,
--side or --quick (tiny models) tables are only printed. A run that gets SIGTERM reports the cases that it has finished.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch

from benchmarks.commands import result_of
from benchmarks.report import end_at_sigterm, report, show
from benchmarks.roofline import Rates, measured_rates
from benchmarks.steps.cases import CASES, EAGER, QUICK, Case, cases_for
from benchmarks.steps.figures import Result, rows_of
from benchmarks.steps.measuring import WARM_UP, free_memory, measure
from benchmarks.steps.models import batch_of
from comera_dist.errors import ConfigError
from comera_dist.runtime.memory import peak_memory_bytes
from comera_dist.runtime.processes import Processes, start_processes

BOOKKEEPING = "bookkeeping"
Cases = dict[str, Case]
Measured = dict[str, list[Result]]
RATES = {"quick": (1 << 24, 512), "cpu": (1 << 28, 2048), "cuda": (1 << 31, 8192)}  # bytes copied, matrix size
DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}


def add_peaks(measured: Measured) -> None:
    """Measures the peak resident bytes of each eager side in processes of one thread, several at a time."""
    wanted = [(key, result) for key, results in measured.items() for result in results if result.side.mode == EAGER]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        peaks = pool.map(lambda pair: _peak_of(pair[0], pair[1].side.name), wanted)
        for (_, result), peak in zip(wanted, peaks, strict=True):
            result.peak_bytes = peak


def _peak_of(key: str, side: str) -> int:
    return int(result_of([sys.executable, __file__, "--peak-of", key, side]))


def print_peak(key: str, name: str, processes: Processes) -> None:
    from benchmarks.steps.sides import open_side

    case = (CASES | QUICK)[key]
    side = next(side for side in case.sides(processes.device.type) if side.name == name)
    subject = open_side(case, side, processes)
    # The first, short step allocates the optimizer's state, which belongs to the peak of the second.
    subject.step(batch_of(case, 1))
    subject.step()
    print(peak_memory_bytes())


def run(cases: Cases, processes: Processes, measured: Measured, failures: list[str]) -> None:
    """Fills `measured` case by case, so that a run that is stopped keeps the finished ones."""
    for key, case in cases.items():
        start = time.perf_counter()
        try:
            measured[key] = measure(case, processes, failures)
        except RuntimeError as error:  # such as no memory for one more step
            failures.append(f"{case.name}: {str(error).splitlines()[0]}")
        free_memory()
        print(f"{case.name}: measured in {time.perf_counter() - start:.0f} s", flush=True)
    if processes.device.type == "cpu":
        add_peaks(measured)


def table(cases: Cases, measured: Measured, device_type: str, rates: Rates) -> list[dict]:
    return [row for key, results in measured.items() for row in rows_of(cases[key], device_type, results, rates)]


def chosen_cases(arguments: argparse.Namespace, device_type: str) -> tuple[Cases, bool]:
    """The cases to run, and whether to measure the bookkeeping. ConfigError for an unknown case."""
    known = QUICK if arguments.quick else cases_for(device_type)
    names = [*known, BOOKKEEPING] if device_type == "cpu" else [*known]
    unknown = [name for name in arguments.cases if name not in names]
    if unknown:
        raise ConfigError(f"{unknown[0]} is not a case on a {device_type} device; choose among {', '.join(names)}")
    cases = {key: case for key, case in known.items() if not arguments.cases or key in arguments.cases}
    cases = {key: replace(case, only=tuple(arguments.side or ())) for key, case in cases.items()}
    wants_bookkeeping = BOOKKEEPING in arguments.cases or not (arguments.cases or arguments.side or arguments.quick)
    return cases, wants_bookkeeping and device_type == "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only these, printed only")
    parser.add_argument("--side", action="append", help="only this side; may be given several times; printed only")
    parser.add_argument("--quick", action="store_true", help="tiny models, printed only")
    parser.add_argument("--peak-of", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1 if arguments.peak_of else len(os.sched_getaffinity(0)))
    processes = start_processes()
    if arguments.peak_of:
        print_peak(*arguments.peak_of, processes)
        return
    device_type = processes.device.type
    try:
        cases, wants_bookkeeping = chosen_cases(arguments, device_type)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    rates = measured_rates(*RATES["quick" if arguments.quick else device_type], processes.device, DTYPE[device_type])
    conditions = f"{DTYPE[device_type]}, one process, {torch.get_num_threads()} threads, sides in turn"
    is_partial = arguments.quick or arguments.cases or arguments.side
    publish = (lambda name, *shown: show(*shown)) if is_partial else report
    end_at_sigterm()
    measured: Measured = {}
    failures: list[str] = []
    try:
        run(cases, processes, measured, failures)
    finally:
        if measured:
            rows = table(cases, measured, device_type, rates)
            publish(
                f"step_{device_type}",
                rows,
                f"training steps, {conditions}, {WARM_UP[device_type]} warm-up; measured rates: {rates}",
            )
    if wants_bookkeeping:
        from benchmarks.steps.bookkeeping import bookkeeping_rows

        publish("step_bookkeeping_cpu", bookkeeping_rows(processes), f"rank adaptation in a step, {conditions}")
    if failures:
        raise SystemExit("\n".join(["These sides failed:", *failures]))


if __name__ == "__main__":
    main()
