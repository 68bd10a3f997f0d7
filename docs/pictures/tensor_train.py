"""Draws docs/tensor_train.png: one weight matrix, and the chain of cores that takes its place.

python docs/pictures/tensor_train.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from comera_dist.formats.tensor_train.shapes import TTShape, plan_tt

INPUTS, OUTPUTS = 768, 3072
GREY, INK, IN_SIDE, OUT_SIDE, GATE = "#c8ccd4", "#30343c", "#7aa6d8", "#e6a05c", "#b5485d"
TARGET = Path(__file__).resolve().parent.parent / "tensor_train.png"


def main() -> None:
    shape = plan_tt(INPUTS, OUTPUTS, order=3, rank=32, outer_rank=16)
    figure, axes = plt.subplots(figsize=(9.6, 3.3), dpi=140)
    axes.set(xlim=(0, 96), ylim=(0, 33))
    axes.set_aspect("equal")
    axes.axis("off")
    _dense(axes)
    axes.annotate("", (30.5, 17), (25.5, 17), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.6})
    _train(axes, shape)
    figure.savefig(TARGET, bbox_inches="tight", pad_inches=0.05)


def _dense(axes: Axes) -> None:
    axes.add_patch(Rectangle((10, 5), 6, 24, facecolor=GREY, edgecolor=INK))
    _text(axes, 13, 17, "W", size=15)
    _text(axes, 13, 30.6, f"{INPUTS} in")
    _text(axes, 8.4, 17, f"{OUTPUTS:,} out", rotation=90)
    _text(axes, 13, 2, f"dense layer: {INPUTS * OUTPUTS:,} numbers")


def _train(axes: Axes, shape: TTShape) -> None:
    modes = [*shape.in_modes, *shape.out_modes]
    places = [36 + 11 * number for number in range(len(modes))]
    for left, right, rank in zip(places, places[1:], shape.ranks[1:-1], strict=False):
        axes.plot([left, right], [17, 17], color=INK, lw=1 + rank / 12, zorder=1)
        axes.plot((left + right) / 2, 17, "o", color=GATE, ms=6, zorder=3)
        _text(axes, (left + right) / 2, 19.6, f"{rank}", color=GATE)
    for number, (place, mode) in enumerate(zip(places, modes, strict=True)):
        is_in = number < len(shape.in_modes)
        end = 26.5 if is_in else 7.5
        axes.plot([place, place], [17, end], color=INK, lw=1.4, zorder=1)
        _text(axes, place, end + (1.5 if is_in else -1.8), f"{mode}")
        box = FancyBboxPatch((place - 2.3, 14.7), 4.6, 4.6, boxstyle="round,pad=0.3", edgecolor=INK, zorder=2)
        box.set_facecolor(IN_SIDE if is_in else OUT_SIDE)
        axes.add_patch(box)
    half = len(shape.in_modes)
    _text(axes, sum(places[:half]) / half, 30.6, f"{_product(shape.in_modes)} {INPUTS} in")
    _text(axes, sum(places[half:]) / half, 2, f"{_product(shape.out_modes)} {OUTPUTS:,} out")
    _text(axes, 47, 8.6, "ranks, with a gate on each bond;\nthey adapt while the run goes on", color=GATE)
    numbers = shape.num_parameters + shape.num_gates
    times = INPUTS * OUTPUTS / numbers
    _text(axes, 77, 27.5, f"six cores: {numbers:,} numbers,\n{times:.0f} times fewer", size=11)


def _product(modes: tuple[int, ...]) -> str:
    return " · ".join(map(str, modes)) + " ="


def _text(axes: Axes, x: float, y: float, text: str, size: float = 10, **more) -> None:
    axes.text(x, y, text, ha="center", va=more.pop("va", "center"), fontsize=size, color=more.pop("color", INK), **more)


if __name__ == "__main__":
    main()
