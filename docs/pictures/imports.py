"""Draws the packages of comera_dist and the imports between them, in a commit and now: docs/imports.png.

    python docs/pictures/imports.py COMMIT

A package is a folder of comera_dist, or a module outside of any folder. An arrow that points upwards is red.
"""

import ast
import subprocess
import sys
from collections import Counter
from math import hypot
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "comera_dist"
Edges = dict[tuple[str, str], int]  # imports by importing and imported package


def sources(commit: str | None) -> dict[str, str]:
    """Text of each module by path below the package, in a commit or as the files are now."""
    if commit is None:
        return {str(path.relative_to(ROOT / PACKAGE)): path.read_text() for path in (ROOT / PACKAGE).rglob("*.py")}
    names = _git("ls-tree", "-r", "--name-only", commit, PACKAGE).split()
    paths = [name for name in names if name.endswith(".py")]
    return {path.removeprefix(f"{PACKAGE}/"): _git("show", f"{commit}:{path}") for path in paths}


def imports(texts: dict[str, str]) -> Edges:
    """Imports between different packages."""
    edges: Counter[tuple[str, str]] = Counter()
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                edges[_package(path), node.module.split(".")[1]] += 1
    return {edge: count for edge, count in edges.items() if edge[0] != edge[1] and edge[0] != "__init__"}


def order(edges: Edges) -> list[str]:
    """Packages from the ground up: always the one that imports the fewest packages that are not below it yet."""
    left, placed = sorted({package for edge in edges for package in edge}), []
    while left:
        open_of = {package: sum(a == package and b in left and b != package for a, b in edges) for package in left}
        placed.append(min(left, key=lambda package: open_of[package]))
        left.remove(placed[-1])
    return placed


def draw(axes: Axes, edges: Edges, title: str) -> None:
    """Packages in a column, arrows as arcs: on the left down to what a package imports, on the right upwards."""
    packages = order(edges)
    height = {package: index for index, package in enumerate(packages)}
    for (package, other), count in edges.items():
        start, end, is_up = height[package], height[other], height[other] > height[package]
        axes.annotate(
            "",
            xy=(0.06 if is_up else -0.06, end),
            xytext=(0.06 if is_up else -0.06, start),
            arrowprops={
                "arrowstyle": "-|>",
                "color": "crimson" if is_up else "steelblue",
                "alpha": 0.75 if is_up else 0.3,
                "lw": min(2.5, 0.5 + hypot(count, 1) / 8),
                "connectionstyle": f"arc3,rad={0.45 if is_up else -0.45}" if end < start else "arc3,rad=0.45",
            },
        )
    for package in packages:
        axes.text(
            0,
            height[package],
            package,
            ha="center",
            va="center",
            fontsize=8,
            bbox={"fc": "white", "ec": "0.6", "pad": 2},
        )
    upwards = sum(height[b] > height[a] for a, b in edges)
    axes.set_title(f"{title}: {len(packages)} packages, {len(edges)} arrows, {upwards} upwards", fontsize=10)
    axes.set(xlim=(-1, 1), ylim=(-1, len(packages)))
    axes.axis("off")


def main(commit: str) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 9))
    draw(left, imports(sources(commit)), f"before ({commit[:7]})")
    draw(right, imports(sources(None)), "now")
    figure.tight_layout()
    figure.savefig(ROOT / "docs/imports.png", dpi=90)


def _package(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(sys.argv[1])
