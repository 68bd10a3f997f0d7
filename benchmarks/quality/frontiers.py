"""Draws the four frontiers of a ladder: python benchmarks/quality/frontiers.py books64

Validation loss against stored parameters, training FLOPs, training time and peak memory, from the tables that
ladder.py wrote (the latter two need its --alone), to docs/quality_NAME.png. A line joins the sides that no other side
beats in both.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.ladders import LADDERS
from benchmarks.report import RESULTS

COSTS = {  # axes, by the column of a row
    "parameters": "stored parameters",
    "training TFLOPs": "training FLOPs, in 10¹²",
    "seconds": "training time on one core, in seconds",
    "peak MiB": "peak memory, in MiB",
}
Row = dict[str, Any]


def rows_of(name: str, steps: int, results: Path = RESULTS) -> list[Row]:
    """The sides of a ladder; with time and memory where the sides were also measured alone."""
    rows, alone = (_table(results / f"{table}.json") for table in (name, f"{name}_alone"))
    costs = {row["side"]: {"seconds": row["step ms"] * steps / 1000, "peak MiB": row["peak MiB"]} for row in alone}
    return [row | costs.get(row["side"], {}) for row in rows]


def frontier(rows: list[Row], cost: str) -> list[Row]:
    """The rows without a row that is at most as costly and has a lower loss, by rising cost."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[cost], row["validation loss"])):
        if not found or row["validation loss"] < found[-1]["validation loss"]:
            found.append(row)
    return found


def draw(rows: list[Row], path: Path) -> None:
    """Four plots in one picture. Bars are the range over seeds."""
    figure = Figure(figsize=(13, 10), dpi=110, layout="constrained")
    for axes, (cost, label) in zip(figure.subplots(2, 2).flat, COSTS.items(), strict=True):
        _draw_cost(axes, [row for row in rows if cost in row], cost)
        axes.set(xlabel=label, ylabel="validation loss, in nats", xscale="log")
        axes.grid(alpha=0.3, which="both")
    figure.savefig(path)


def _draw_cost(axes: Axes, rows: list[Row], cost: str) -> None:
    for row in rows:
        loss, is_dense = row["validation loss"], "dense" in row["side"]
        bar = [[loss - row["lowest"]], [row["highest"] - loss]]
        marker, colour = "s" if "AdamW" in row["side"] else "o", "tab:gray" if is_dense else "tab:blue"
        axes.errorbar(row[cost], loss, yerr=bar, marker=marker, color=colour, linestyle="none")
        axes.annotate(row["side"], (row[cost], loss), xytext=(5, 3), textcoords="offset points", fontsize=7)
    best = frontier(rows, cost)
    axes.plot([row[cost] for row in best], [row["validation loss"] for row in best], color="tab:orange", linewidth=1)


def _table(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=LADDERS)
    parser.add_argument("--output", type=Path, help="picture to write (default: docs/quality_NAME.png)")
    arguments = parser.parse_args()
    rows = rows_of(arguments.ladder, LADDERS[arguments.ladder].steps)
    if not rows:
        raise SystemExit(f"no table of {arguments.ladder}; run benchmarks/quality/ladder.py {arguments.ladder} first")
    draw(rows, arguments.output or Path(__file__).parents[2] / "docs" / f"quality_{arguments.ladder}.png")


if __name__ == "__main__":
    main()
