"""Whole runs at equal tokens: python benchmarks/quality/twins.py {dense,ranks} [--seeds 1]

dense: the quickstart against dense models of its shape and of its size, and against block trains. ranks: a run with
adapted ranks against a run with fixed ranks and a dense model, both of the same final size. All sides are runs of the
launcher on two processes, in turn, with the same data. Finished runs are not repeated. Draws a picture of the first
seed.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from matplotlib.figure import Figure

from benchmarks.commands import BIN, output_of
from benchmarks.quality.sides import block_trains
from benchmarks.report import report

RUNS = Path("runs/quality")
WINDOW = 10  # records of ten steps; chosen: single batches differ by more than the sides
LOSSES = (2.7, 6.0)  # nats a token that the picture shows; chosen: the sides differ in the lower half


@dataclass(frozen=True)
class Comparison:
    """`sides` maps a side's name to its configuration and overrides."""

    title: str
    sides: dict[str, tuple[str, list[str]]]
    figure: Path


COMPARISONS = {
    "dense": Comparison(
        "quickstart and dense models at equal tokens, Python standard library",
        {
            "quickstart": ("configs/quickstart.yaml", []),
            # Its own rates, the best of seven runs: docs/measured.md.
            "dense, AdamW": (
                "configs/quickstart.yaml",
                ["model.format=dense", "optim.kind=adamw", "optim.lr=7.5e-4", "optim.table_lr_scale=16"],
            ),
            "dense, spectral": ("configs/quickstart.yaml", ["model.format=dense"]),
            # The next two are as large as the quickstart's model.
            "narrow dense, spectral": (
                "configs/quickstart.yaml",
                ["model.format=dense", "model.d_model=120", "model.d_ff=328"],
            ),
            "block trains, spectral": ("configs/quickstart.yaml", [*block_trains(2, 120)]),
        },
        Path("docs/quickstart.png"),
    ),
    "ranks": Comparison(
        "adapted ranks, fixed ranks and a dense model of the same final size at equal tokens, Python standard library",
        {
            "adapted": ("configs/quickstart_ranks.yaml", []),
            # The smallest ranks of the blocks, and a vocabulary that is larger by what they leave.
            "fixed": (
                "configs/quickstart_ranks.yaml",
                ["ranks={}", "tensor.block_train.rank=1", "tensor.low_rank.rank=68"],
            ),
            "narrow dense": (
                "configs/quickstart_ranks.yaml",
                [
                    "ranks={}",
                    "model.format=dense",
                    "model.d_model=68",
                    "model.d_ff=184",
                    "model.heads=2",
                ],
            ),
        },
        Path("docs/quickstart_ranks.png"),
    ),
}


def run(name: str, side: str, seed: int) -> Path:
    """Trains one side with one seed, unless it is finished; returns its run directory."""
    config, overrides = COMPARISONS[name].sides[side]
    run_name = f"{side.replace(',', '').replace(' ', '_')}_{seed}"
    command = [BIN / "deepspeed", "--num_accelerators", "2", "launch/pretrain.py"]
    command += ["--config", config, f"run.directory={RUNS}", f"run.name={run_name}", f"run.seed={seed}"]
    command += ["wandb.mode=disabled", *overrides]
    output_of(command)
    return RUNS / run_name


def row(side: str, seed: int, directory: Path) -> dict:
    summary = json.loads((directory / "summary.json").read_text())
    return {
        "side": side,
        "seed": seed,
        "parameters": summary["params"],
        "compression": round(summary["compression"], 2),
        "tokens": summary["tokens"],
        "validation loss": round(summary["val_loss"], 4),
        "bits per byte": round(summary["val_bits_per_byte"], 4),
        "seconds": round(summary["wall_seconds"]),
    }


def running_means(losses: list[float]) -> list[float]:
    """The mean of each loss and the WINDOW - 1 before it, or of as many as there are."""
    return [fmean(losses[max(0, index + 1 - WINDOW) : index + 1]) for index in range(len(losses))]


def draw(directories: dict[str, Path], path: Path) -> None:
    figure = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    for side, directory in directories.items():
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        size = f"{side}, {records[-1]['params'] / 1e6:.2f} M parameters"
        losses = running_means([r["loss"] for r in records])
        by_tokens.plot([r["tokens"] / 1e6 for r in records], losses, label=size)
        # Validation is not counted, so both sides do the same work.
        seconds, times = 0.0, []
        for before, record in zip([0] + [r["step"] for r in records], records, strict=False):
            seconds += (record["step"] - before) * record["step_ms"] / 1000
            times.append(seconds)
        by_time.plot(times, losses, label=size)
    by_tokens.set(xlabel="million tokens", ylabel=f"training loss, mean of {WINDOW} records", ylim=LOSSES)
    by_time.set(xlabel="seconds on two CPU cores")
    for axes in (by_tokens, by_time):
        axes.grid(alpha=0.3)
    by_time.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    comparison = COMPARISONS[arguments.comparison]
    directories, rows = {}, []
    for seed in range(1, arguments.seeds + 1):
        for side in comparison.sides:
            directory = run(arguments.comparison, side, seed)
            directories.setdefault(side, directory)
            rows.append(row(side, seed, directory))
    draw(directories, comparison.figure)
    report(f"quality_{arguments.comparison}", rows, comparison.title)


if __name__ == "__main__":
    main()
