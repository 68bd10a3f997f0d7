"""Curves and heat maps of runs as SVG."""

import math
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice, product
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from comera_dist.errors import RunDirectoryError
from comera_dist.report.compare.run_files import RunFiles, units_of
from comera_dist.report.html.drawing import COLOURS, LINE_STYLES, as_svg
from comera_dist.report.norm_plots import draw_updates
from comera_dist.report.rank_plots import draw_rank_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SETTLED = 4  # chosen: a run's first quarter of records does not decide the range of losses that is shown

_UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))
_FEWEST = 2  # chosen: of a unit, for an axis in it


def curve_looks(runs: list[RunFiles]) -> list[tuple[str, str]]:
    """Colour and line style of each run's curves. The style changes when all colours are used up."""
    return [(colour, style) for style, colour in islice(cycle(product(LINE_STYLES, COLOURS)), len(runs))]


def loss_charts(runs: list[RunFiles]) -> dict[str, Markup]:
    """Training losses as lines and validation losses as points against steps, data and time, as SVG by name.

    Raises RunDirectoryError.
    """
    if not any(run.records for run in runs):
        return {}
    units = units_of(runs)
    scales: dict[str, tuple[str, Callable[[RunFiles], list[float]]]] = {
        "steps": ("step", lambda run: [record["step"] for record in run.records]),
        units: (units, lambda run: [record["tokens"] for record in run.records]),
        "time": _time_scale(runs),
    }
    return {
        name: _drawn(runs, f"loss-{number}", partial(draw_losses, runs=runs, label=label, places=places), "metrics")
        for number, (name, (label, places)) in enumerate(scales.items())
    }


def _time_scale(runs: list[RunFiles]) -> tuple[str, Callable[[RunFiles], list[float]]]:
    """Label and values of the axis of time, in the unit that suits the longest run."""
    longest = max((second for run in runs for second in run.seconds() if math.isfinite(second)), default=0.0)
    unit, size = next(((unit, size) for unit, size in _UNITS if longest >= _FEWEST * size), _UNITS[-1])
    return f"{unit} of training steps", lambda run: [second / size for second in run.seconds()]


def rank_charts(runs: list[RunFiles]) -> dict[str, Markup]:
    """A heat map of ranks for each run whose ranks were synced, as SVG by the run's name. Raises RunDirectoryError."""
    synced = [run for run in runs if len(run.syncs) > 1 and any(run.syncs[0]["ranks"].values())]
    return {
        run.name: _heat_map(run, f"ranks-{number}", partial(draw_rank_history, syncs=run.syncs), "ranks")
        for number, run in enumerate(synced)
    }


def update_charts(runs: list[RunFiles]) -> dict[str, Markup]:
    """A heat map of updates for each run that recorded norms, as SVG by the run's name. Raises RunDirectoryError."""
    return {
        run.name: _heat_map(run, f"updates-{number}", partial(draw_updates, records=run.norms), "norms")
        for number, run in enumerate(run for run in runs if run.norms)
    }


def _heat_map(run: RunFiles, prefix: str, draw: Callable[["Axes"], None], log: str) -> Markup:
    return _drawn([run], prefix, partial(_draw_rasterized, draw=draw), log)


def _drawn(runs: list[RunFiles], prefix: str, draw: Callable[["Axes"], None], log: str) -> Markup:
    try:
        return as_svg(prefix, draw)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunDirectoryError(
            f"the {log} of {', '.join(run.name for run in runs)} cannot be drawn ({type(error).__name__}: {error}), "
            f"because {log}.jsonl was changed; restore that file, or leave the run out"
        ) from error


def draw_losses(axes: "Axes", runs: list[RunFiles], label: str, places: Callable[[RunFiles], list[float]]) -> None:
    """Draws the losses of all runs. `places` gives where the records of a run lie along the axis that `label` names."""
    for run, (colour, style) in zip(runs, curve_looks(runs), strict=True):
        along = dict(zip((record["step"] for record in run.records), places(run), strict=True))
        look: dict[str, Any] = {"color": colour, "linestyle": style}
        axes.plot(list(along.values()), [record["loss"] for record in run.records], lw=1.2, alpha=0.65, **look)
        steps, losses = run.column("val_loss")
        axes.plot([along[step] for step in steps], losses, marker="o", ms=4, **look)
    axes.set(xlabel=label, ylabel="loss (nats per target)")
    _show_settled(axes, runs)


def _show_settled(axes: "Axes", runs: list[RunFiles]) -> None:
    """Ends the axis above the losses after each run's first quarter: earlier ones would flatten all others."""
    losses = [[record["loss"] for record in run.records] for run in runs if run.records]
    # A loss of the validation may be lower than all training losses, e.g. with dropout.
    losses += [found for run in runs if (found := run.column("val_loss")[1])]
    low = min(min(of_one) for of_one in losses)
    high = max(max(of_one[len(of_one) // _SETTLED :]) for of_one in losses)
    if high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))


def _draw_rasterized(axes: "Axes", draw: Callable[["Axes"], None]) -> None:
    from matplotlib.collections import QuadMesh

    draw(axes)
    for collection in axes.collections:
        if isinstance(collection, QuadMesh):
            collection.set_rasterized(True)  # as vectors each cell would be a path of its own
