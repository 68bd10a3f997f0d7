"""Plots of ranks, and of loss against size, from records of ranks.jsonl (`syncs`) and metrics.jsonl (`records`)."""

from bisect import bisect_left
from itertools import accumulate, groupby, pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECENT = 3  # chosen: records whose mean loss stands for a size, because one alone is noisy
Records = list[dict[str, Any]]


def draw_rank_history(axes: "Axes", syncs: Records) -> None:
    """A heat map over steps. Each sync's column reaches to the next sync, the last column as far as the one before."""
    from matplotlib import colormaps

    planned = {name: ranks for name, ranks in syncs[0]["ranks"].items() if ranks}
    axes.figure.set_figheight(2 + 0.16 * len(planned))  # type: ignore[union-attr]  # no SubFigure: plots.py makes it
    steps = [sync["step"] for sync in syncs]
    edges = [*steps, 2 * steps[-1] - steps[-2]]
    grid = rank_grid(syncs)
    colours = colormaps["YlGnBu"].with_extremes(under="silver")
    image = axes.pcolormesh(edges, range(len(grid) + 1), grid, cmap=colours, vmin=1e-9)
    ends = [0, *accumulate(map(len, planned.values()))]
    middles = [(top + bottom) / 2 for top, bottom in pairwise(ends)]
    axes.set_yticks(middles, [name.removeprefix("model.") for name in planned], fontsize=6)
    axes.hlines(ends, edges[0], edges[-1], colors="gray", linewidths=0.4)
    axes.invert_yaxis()
    axes.set(xlabel="step", ylabel="layer (a row each bond, the first on top)")
    axes.grid(False)
    _mark_stages(axes, syncs)
    axes.figure.colorbar(image, label="effective rank / initial rank (grey: layer removed)")


def rank_grid(syncs: Records) -> list[list[float]]:
    """(bonds, syncs): the effective rank after each sync over the initial rank, 0 in a removed layer."""
    return [
        [_rank_after(sync, name, bond) / rank for sync in syncs]
        for name, ranks in syncs[0]["ranks"].items()
        for bond, rank in enumerate(ranks)
    ]


def _rank_after(sync: dict[str, Any], layer: str, bond: int) -> float:
    if layer not in sync["ranks"]:
        return 0.0
    rank: float = sync["ranks"][layer][bond]
    # The effective rank was measured before the sync cut anything, so the rank after the cut bounds it.
    return min(rank, sync["effective"][layer][bond]) if "effective" in sync else rank


def _mark_stages(axes: "Axes", syncs: Records) -> None:
    cuts = [sync["step"] for sync in syncs if sync.get("cut")]
    above: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    if cuts:
        axes.plot(cuts, [1.005] * len(cuts), "v", color="tab:red", label="indices cut", **above)
    late = [sync["step"] for sync in syncs if sync.get("stage", "early") != "early"]
    if late:
        axes.axvline(late[0], color="tab:orange", linestyle="--", label="late stage begins")
    if cuts or late:
        axes.figure.legend(loc="outside upper center", ncols=2, frameon=False)


def draw_size(axes: "Axes", records: Records, syncs: Records) -> None:
    """Loss against size. Colours and arrows show the direction of time."""
    sizes, losses = trained_sizes(records, syncs), [r["loss"] for r in records]
    steps = [r["step"] for r in records]
    points = axes.scatter(sizes, losses, c=steps, cmap="viridis_r", s=12, alpha=0.5, label="training, one step each")
    means = loss_by_size(sizes, losses)
    axes.plot(*zip(*means, strict=True), "ko", ms=4, label=f"training, mean of the last {RECENT} records of a size")
    for start, end in pairwise(means):
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->"})
    evaluated = [(r["params"], r["val_loss"]) for r in records if "val_loss" in r]
    if evaluated:
        axes.plot(*zip(*evaluated, strict=True), "D", ms=5, color="tab:orange", label="validation")
    last = syncs[-1] if syncs else {}
    if last.get("target") is not None:  # the target counts the adapted layers alone, `params` the whole model
        target = last["target"] + last["params"] - last["size"]
        axes.axvline(target, color="tab:red", linestyle="--", label="target size")
    # The losses of the first quarter would flatten all others.
    low, high = min(losses), max(*losses[len(losses) // 4 :], *(loss for _, loss in means))
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.set(xlabel="stored parameters of the model", ylabel="loss (nats per target)")
    _scale_sizes(axes)
    axes.figure.legend(loc="outside upper center", ncols=2, frameon=False)
    axes.figure.colorbar(points, label="step")


def trained_sizes(records: Records, syncs: Records) -> list[int]:
    """Parameters of the model that had each record's training loss.

    The record's own `params` may be smaller: the sync after the step may have cut the model.
    """
    sized = sorted((sync for sync in syncs if "params" in sync), key=lambda sync: sync["step"])
    steps = [sync["step"] for sync in sized]
    params = [records[0]["params"], *(sync["params"] for sync in sized)]
    return [params[bisect_left(steps, record["step"])] for record in records]


def loss_by_size(sizes: list[int], losses: list[float]) -> list[tuple[int, float]]:
    """Each size, in the order of time, with the mean of its last losses."""
    stays = groupby(zip(sizes, losses, strict=True), key=lambda pair: pair[0])
    return [(size, fmean([loss for _, loss in stay][-RECENT:])) for size, stay in stays]


def _scale_sizes(axes: "Axes") -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
