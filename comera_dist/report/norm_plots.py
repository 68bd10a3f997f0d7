"""A heat map of the relative updates of all layers over a run, from records of norms.jsonl."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 2000  # columns; chosen: a picture has fewer pixels

Records = list[dict[str, Any]]


def read_updates(records: Iterable[dict[str, Any]], most: int = MOST) -> Records:
    """What is drawn of each record with updates or, of more than `most`, of the last and of others at equal distances.

    Takes no more memory than these: a long run may have millions of records with four numbers for each layer.
    """
    kept: Records = []
    distance, last = 1, None
    updates = (record for record in records if isinstance(record.get("update_ratio"), dict))
    for number, record in enumerate(updates):
        last = {"step": record["step"], "update_ratio": record["update_ratio"]}
        if number % distance == 0:
            kept.append(last)
            if len(kept) == most:
                kept, distance = kept[::2], 2 * distance
    return kept if last is None or last is kept[-1] else [*kept, last]


def draw_updates(axes: "Axes", records: Records) -> None:
    """A row each layer, a column each record, which reaches back to the record before it."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    grid = update_grid(records)
    axes.figure.set_figheight(2 + 0.11 * len(grid))  # type: ignore[union-attr]  # no SubFigure: plots.py makes it
    steps = [record["step"] for record in records]
    # A resume may have raised log.norms_every.
    before_first = max(0, 2 * steps[0] - steps[1]) if len(steps) > 1 else 0
    shown = [ratio for row in grid.values() for ratio in row if ratio > 0]  # no NaN is
    colours = colormaps["viridis"].with_extremes(bad="silver")
    scale = LogNorm(min(shown), max(shown)) if shown else None
    edges = [before_first, *steps]
    image = axes.pcolormesh(edges, range(len(grid) + 1), list(grid.values()), cmap=colours, norm=scale)
    axes.set_yticks([row + 0.5 for row in range(len(grid))], [name.removeprefix("model.") for name in grid], fontsize=6)
    axes.invert_yaxis()
    axes.set(xlabel="step", ylabel="layer")
    axes.grid(False)
    axes.figure.colorbar(image, label="norm of the update / norm of the weights (grey: none)")


def update_grid(records: Records) -> dict[str, list[float]]:
    """For each layer its relative update in each record; NaN where there is none, as after the layer's removal."""
    layers = dict.fromkeys(layer for record in records for layer in record["update_ratio"])
    return {layer: [record["update_ratio"].get(layer) or math.nan for record in records] for layer in layers}
