"""PNG plots of a run, drawn from its log files."""

from pathlib import Path

from comera_dist.run_directory import RunDirectory


def draw_plots(directory: RunDirectory) -> dict[str, str]:
    """Draws loss.png, speed.png and, where there are tensor trains, ranks.png; returns their paths by name."""
    import matplotlib

    matplotlib.use("Agg")
    records = directory.read("metrics.jsonl")
    paths = {name: directory.plots / f"{name}.png" for name in ("loss", "speed", "ranks")}
    _draw_loss(records, paths["loss"])
    _draw_speed(records, paths["speed"])
    ranks = [record for record in directory.read("ranks.jsonl") if record["ranks"]]
    if ranks:
        _draw_ranks(ranks[-1], paths["ranks"])
    return {name: str(path) for name, path in paths.items() if path.exists()}


def _draw_loss(records: list[dict], path: Path) -> None:
    figure, axes = _figure("tokens", "loss (nats per token)")
    axes.plot([r["tokens"] for r in records], [r["loss"] for r in records], label="training")
    evaluated = [r for r in records if "val_loss" in r]
    axes.plot([r["tokens"] for r in evaluated], [r["val_loss"] for r in evaluated], "o-", label="validation")
    axes.legend()
    figure.savefig(path)


def _draw_speed(records: list[dict], path: Path) -> None:
    figure, axes = _figure("step", "tokens per second")
    axes.plot([r["step"] for r in records], [r["tokens_per_second"] for r in records])
    axes.set_ylim(bottom=0)
    figure.savefig(path)


def _draw_ranks(record: dict, path: Path) -> None:
    layers = record["ranks"]
    figure, axes = _figure("bond", "", height=1.5 + 0.16 * len(layers))
    bonds = max(map(len, layers.values()))
    grid = [ranks + [float("nan")] * (bonds - len(ranks)) for ranks in layers.values()]
    image = axes.imshow(grid, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(layers)), [name.removeprefix("model.") for name in layers], fontsize=6)
    axes.set_xticks(range(bonds), range(1, bonds + 1))
    axes.set_title(f"ranks at step {record['step']}")
    axes.grid(False)
    figure.colorbar(image, label="rank")
    figure.savefig(path)


def _figure(x_label: str, y_label: str, height: float = 4.5):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes
