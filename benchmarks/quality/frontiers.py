"""Draws the frontiers of a ladder: python benchmarks/quality/frontiers.py books64

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
from matplotlib.ticker import LogFormatter

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
COLUMNS = 2  # of names below the plots
PLOT, LINE = 5.5, 0.25  # inches of a plot's side and of a name
Row = dict[str, Any]


class PlainLabels(LogFormatter):
    """Labels of a logarithmic axis without powers of ten."""

    def __call__(self, value: float, position: int | None = None) -> str:
        return f"{value:,.12g}" if super().__call__(value, position) else ""


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
    """A plot of each measured cost, whose points have numbers and one list of names. Bars are the range over seeds."""
    costs = {cost: label for cost, label in COSTS.items() if any(cost in row for row in rows)}
    numbered = list(enumerate(sorted(rows, key=lambda row: row["validation loss"]), start=1))
    height = -(-len(numbered) // COLUMNS)
    inches = (PLOT * len(costs) / 2, LINE * (height + 1))
    figure = Figure(figsize=(2 * PLOT + 1, sum(inches)), dpi=110, layout="constrained")
    plots, names = figure.subfigures(2, 1, height_ratios=inches)
    for axes, (cost, label) in zip(plots.subplots(len(costs) // 2, 2).flat, costs.items(), strict=True):
        _draw_cost(axes, [(number, row) for number, row in numbered if cost in row], cost)
        axes.set(xlabel=label, ylabel="validation loss, in nats", xscale="log")
        axes.xaxis.set(major_formatter=PlainLabels(), minor_formatter=PlainLabels(minor_thresholds=(1, 0.4)))
        axes.grid(alpha=0.3, which="both")
    for column in range(COLUMNS):
        lines = [f"{number}  {row['side']}" for number, row in numbered[column * height : (column + 1) * height]]
        names.text(column / COLUMNS + 0.02, 1, "\n".join(lines), va="top", linespacing=1.5)
    figure.savefig(path)


def _draw_cost(axes: Axes, numbered: list[tuple[int, Row]], cost: str) -> None:
    for number, row in numbered:
        loss, is_dense = row["validation loss"], "dense" in row["side"]
        bar = [[loss - row["lowest"]], [row["highest"] - loss]]
        marker, colour = "s" if "AdamW" in row["side"] else "o", "tab:gray" if is_dense else "tab:blue"
        axes.errorbar(row[cost], loss, yerr=bar, marker=marker, color=colour, linestyle="none")
        # Neighbours in loss have their numbers on different sides.
        shift, side = (6, "left") if number % 2 else (-6, "right")
        at = (row[cost], loss)
        axes.annotate(str(number), at, xytext=(shift, 0), textcoords="offset points", ha=side, va="center")
    best = frontier([row for _, row in numbered], cost)
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
