"""Plots of how well a model predicts a split, from the records of launch/evaluate.py --report."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records = list[dict[str, Any]]


def draw_loss_by_position(axes: "Axes", positions: Records) -> None:
    """The mean loss at each position of a window; the first positions, where it falls, have most of the width."""
    axes.plot([one["position"] for one in positions], [one["loss"] for one in positions])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="position in the window (tokens)", ylabel="loss (nats per target)")


def draw_calibration(axes: "Axes", bins: Records, error: float) -> None:
    """A reliability diagram: accuracy over confidence, a bar each bin, whose shade is its number of targets."""
    most = max(one["targets"] for one in bins)
    axes.plot([0, 1], [0, 1], "--", color="gray", label="calibrated")
    axes.bar(
        [one["above"] for one in bins],
        [one["accuracy"] for one in bins],
        width=[one["up_to"] - one["above"] for one in bins],
        align="edge",
        edgecolor="tab:blue",
        color=[("tab:blue", 0.1 + 0.9 * (one["targets"] / most)) for one in bins],
    )
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(f"expected calibration error {error:.4f}; darker bars hold more targets", fontsize=9)
    axes.legend(loc="upper left")
