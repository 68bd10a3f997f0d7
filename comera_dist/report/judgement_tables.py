"""The results of launch/evaluate.py as tables."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from comera_dist.report.lines import figure_in_words
from comera_dist.report.tables import WIDTH, show_table

# Of a task: its items, the solved examples before each, and the items whose prompts lost their beginnings.
COUNTS = ("items", "shots", "truncated")


def show_evaluation(result: dict[str, Any]) -> None:
    """The result of launch/evaluate.py on prepared data, one row a figure."""
    # Not the table's title, which would be wrapped.
    print(f"{result['run']} at step {result['step']} on {result['split']} of {result['corpus']}", flush=True)
    curves = {key: value for key, value in result.items() if isinstance(value, list)}
    _show_figures([(key, value) for key, value in list(result.items())[4:] if key not in curves])
    if "loss_by_position" in curves:
        show_table(["<position", "targets", "loss"], _in_octaves(curves["loss_by_position"]), WIDTH)
    if "calibration" in curves:
        show_table(["<confidence", "targets", "mean", "accuracy"], map(_calibration, curves["calibration"]), WIDTH)


def _in_octaves(positions: list[dict[str, Any]]) -> Iterator[Sequence[str]]:
    """The mean loss at positions 1, 2, 3 to 4, 5 to 8 and so on."""
    for _, group in groupby(positions, lambda one: (one["position"] - 1).bit_length()):
        members = list(group)
        first, last = members[0]["position"], members[-1]["position"]
        targets = sum(one["targets"] for one in members)
        loss = sum(one["loss"] * one["targets"] for one in members) / targets
        yield f"{first} to {last}" if last > first else f"{first}", f"{targets:,}", f"{loss:.4f}"


def _calibration(one: dict[str, Any]) -> Sequence[str]:
    span = f"{one['above']:.3f} to {one['up_to']:.3f}"
    return span, f"{one['targets']:,}", f"{one['confidence']:.4f}", f"{one['accuracy']:.4f}"


def show_text(result: dict[str, Any]) -> None:
    """The result of launch/evaluate.py --text, one row a figure."""
    print(f"{result['run']} at step {result['step']} on {result['text']}", flush=True)
    _show_figures(list(result.items())[3:])


def _show_figures(figures: Sequence[tuple[str, Any]]) -> None:
    rows = [(name.replace("_", " "), f"{v:,}" if isinstance(v, int) else figure_in_words(v)) for name, v in figures]
    show_table(["<", ""], rows, WIDTH)


def show_tasks(result: dict[str, Any]) -> None:
    """The result of launch/evaluate.py --tasks, one row a metric."""
    print(f"{result['run']} at step {result['step']}", flush=True)
    rows = [
        (task, *(str(metrics.get(count, "")) for count in COUNTS), name, f"{value:.4f}", _standard_error(metrics, name))
        for task, metrics in result["tasks"].items()
        for name, value in metrics.items()
        if name not in COUNTS and "_stderr" not in name
    ]
    show_table(["<task", *COUNTS, "<metric", "", "standard error"], rows, WIDTH)


def _standard_error(metrics: dict[str, float], name: str) -> str:
    """That of the metric `name`: of "acc" and "acc strict" it is "acc_stderr" and "acc_stderr strict"."""
    metric, space, answers = name.partition(" ")
    error = metrics.get(f"{metric}_stderr{space}{answers}")
    return "" if error is None else f"± {error:.4f}"
