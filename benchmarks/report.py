"""Times sides in turn, and reports: a table on the console, and JSON with the machine in the folder of results.

A side is one of the things that a benchmark compares. Sides take turns, so that a busy moment of the machine hits all.
"""

import json
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"


def show_or_report(name: str, rows: list[dict], title: str, quick: bool) -> None:
    """Shows the table of a quick run, which is no measurement; reports that of any other."""
    if quick:
        show(rows, title)
    else:
        report(name, rows, title)


def milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call: by the wall clock on a CPU, by events on a GPU (which include launches)."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - start)
    torch.cuda.synchronize(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def times_in_turn(sides: dict[str, Callable[[], float]], warm_up: int, repeats: int) -> dict[str, list[float]]:
    """The results of `repeats` calls of each side, after `warm_up` calls whose results are dropped."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(warm_up + repeats):
        for name, measure in sides.items():
            elapsed = measure()
            if repeat >= warm_up:
                times[name].append(elapsed)
    return times


def end_at_sigterm() -> None:
    """Makes SIGTERM raise SystemExit, so that a command that runs out of time can report its finished rows."""

    def end(*_: object) -> None:
        # `timeout` sends the signal twice, and the second must not interrupt the report.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit("stopped by a signal")

    signal.signal(signal.SIGTERM, end)


def ratios(theirs: list[float], mine: list[float]) -> list[float]:
    """How many times as fast `mine` is as `theirs`, turn by turn."""
    return [a / b for a, b in zip(theirs, mine, strict=True)]


def spread(values: list[float], digits: int = 1) -> str:
    """Median and range of repeated measurements."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def show(rows: list[dict], title: str) -> None:
    """Prints rows as a table."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=150, markup=False, emoji=False).print(table)  # names may hold brackets and colons


def report(name: str, rows: list[dict], title: str) -> None:
    """Prints rows as a table and writes benchmarks/results/NAME.json."""
    show(rows, title)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"title": title, "machine": machine(), "rows": rows}, indent=1, ensure_ascii=False) + "\n"
    )


def reported(name: str) -> list[dict]:
    """The rows of benchmarks/results/NAME.json, which must exist."""
    rows: list[dict] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows
