"""Losses in fp32, bf16 and fp8, and with moments in bf16 and in 8 bits: python benchmarks/quality/precision.py

The sides of the ladder books64 that SIDES names, at the rate 1, on three seeds. Runs are those of ladder.py: killed
ones resume, and benchmarks/results/ladder_runs.json records finished ones. Without FP8 products in the device, fp8 is
emulated exactly. Two runs of one thread run at a time.
"""

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.ladder import SEEDS, Runs
from benchmarks.quality.ladders import LADDERS
from benchmarks.report import report

SIDES = ("dense, spectral", "blocks r=2, spectral")
PRECISIONS = {
    "fp32": (),
    "bf16": ("train.precision=bf16",),
    "fp8": ("train.precision=fp8",),
    "fp32, moments in bf16": ("optim.moments=bf16",),
    "fp32, moments in 8 bits": ("optim.moments=8bit",),
}


def runs_in(precision: str, folder: Path) -> Runs:
    """The runs of books64 in a precision; those in fp32 are its own."""
    ladder = LADDERS["books64"]
    return Runs(replace(ladder, base=(*ladder.base, *PRECISIONS[precision])), folder)


def row(side: str, losses: dict[str, list[float]]) -> dict[str, str | float]:
    """Mean, and range in brackets, of the seeds in each precision; then how much more fp8 loses than bf16."""
    cells = {
        precision: f"{statistics.mean(found):.4f} ({min(found):.4f} to {max(found):.4f})"
        for precision, found in losses.items()
    }
    return {
        "side": side,
        **cells,
        "fp8 above bf16": round(statistics.mean(losses["fp8"]) - statistics.mean(losses["bf16"]), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", action="append", choices=SIDES, help="only this side; may be given several times")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/ladder"), help="folder of the runs")
    arguments = parser.parse_args()
    sides = arguments.side or SIDES
    runs = {precision: runs_in(precision, arguments.runs) for precision in PRECISIONS}
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(lambda run: runs[run[1]].finish(run[0], 1.0, run[2]), product(sides, PRECISIONS, SEEDS)))
    rows = [
        row(side, {precision: [runs[precision].finish(side, 1.0, seed) for seed in SEEDS] for precision in PRECISIONS})
        for side in sides
    ]
    report("precision", rows, "Validation loss of books64 in each precision")


if __name__ == "__main__":
    main()
