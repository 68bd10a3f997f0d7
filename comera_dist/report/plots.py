"""PNG plots of a run, drawn from its log files."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from comera_dist.config.tree import Config
from comera_dist.report.live_pictures import due_picture
from comera_dist.report.norm_plots import draw_updates, read_updates
from comera_dist.report.rank_plots import draw_rank_history, draw_size
from comera_dist.report.records import Record, RunFinished
from comera_dist.storage.files import write_whole
from comera_dist.storage.run_directory import RunDirectory

if TYPE_CHECKING:  # a run imports matplotlib only when it draws
    from matplotlib.axes import Axes

Records = list[dict[str, Any]]


class HeatMap(NamedTuple):
    """A picture of one log: what is read of its records, the fewest that are drawn, and the drawing."""

    log: str
    read: Callable[[Iterable[dict[str, Any]]], Records]
    fewest: int
    draw: Callable[["Axes", Records], None]


HEAT_MAPS = {
    "ranks": HeatMap("ranks.jsonl", list, 2, draw_rank_history),
    "updates": HeatMap("norms.jsonl", read_updates, 1, draw_updates),
}


class Plots:
    """Draws heat maps during the run and all plots when it is finished, unless `log.plots` is false.

    An error does not end the run: the plots are drawn from log files, which anybody may have changed.
    """

    def __init__(self, config: Config, directory: RunDirectory):
        self._config, self._directory = config, directory

    def __call__(self, record: Record) -> None:
        due, is_end = due_picture(record, self._config), isinstance(record, RunFinished) and self._config.log.plots
        try:
            if due is not None:
                draw_heat_map(self._directory, due.name)
            elif is_end:
                draw_plots(self._directory, self._config.unit)
        except Exception as error:
            print(f"The plots cannot be drawn ({type(error).__name__}: {error}).", flush=True)


def draw_plots(directory: RunDirectory, unit: str = "tokens") -> dict[str, str]:
    """Draws loss.png and speed.png, ranks.png if ranks adapt, size.png if the size changed, and updates.png if norms
    were recorded.

    Returns the paths by name.
    """
    records, syncs = directory.read("metrics.jsonl"), directory.read("ranks.jsonl")
    drawings: dict[str, Callable[[Axes], None]] = {
        "loss": lambda axes: _draw_loss(axes, records, unit),
        "speed": lambda axes: _draw_speed(axes, records, unit),
    }
    if len({record["params"] for record in records}) > 1:
        drawings["size"] = lambda axes: draw_size(axes, records, syncs)
    drawn = {name: save_plot(draw, str(directory.plots / f"{name}.png")) for name, draw in drawings.items()}
    return drawn | draw_heat_map(directory, "ranks") | draw_heat_map(directory, "updates")


def draw_heat_map(directory: RunDirectory, name: str) -> dict[str, str]:
    """Draws ranks.png or updates.png from its own log alone, as a run waits for it. Returns the path by name.

    Nothing is drawn before the log has the records that show a course.
    """
    heat_map = HEAT_MAPS[name]
    records = heat_map.read(directory.records(heat_map.log))
    if len(records) < heat_map.fewest:
        return {}
    return {name: save_plot(lambda axes: heat_map.draw(axes, records), str(directory.plots / f"{name}.png"))}


def save_plot(draw: Callable[["Axes"], None], path: str) -> str:
    """Writes what `draw` draws as a PNG file, and returns its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    draw(axes)
    picture = io.BytesIO()
    figure.savefig(picture)
    write_whole(Path(path), picture.getvalue())  # W&B's thread may be reading the picture before it
    return path


def _draw_loss(axes: "Axes", records: Records, unit: str) -> None:
    axes.plot([r["tokens"] for r in records], [r["loss"] for r in records], label="training")
    evaluated = [r for r in records if "val_loss" in r]
    axes.plot([r["tokens"] for r in evaluated], [r["val_loss"] for r in evaluated], "o-", label="validation")
    axes.set(xlabel=unit, ylabel="loss (nats per target)")
    axes.legend()


def _draw_speed(axes: "Axes", records: Records, unit: str) -> None:
    axes.plot([r["step"] for r in records], [r["tokens_per_second"] for r in records])
    axes.set(xlabel="step", ylabel=f"{unit} per second")
    axes.set_ylim(bottom=0)
