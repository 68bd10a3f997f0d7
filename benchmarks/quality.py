"""The quickstart against its dense twin at equal tokens: python benchmarks/quality.py [--seeds 1]

Both sides are whole runs of the launcher on two processes, in turn. Draws docs/quickstart.png for the README. The
learning rate is the quickstart's for both; neither side is tuned.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure
from report import report

SIDES = {"tensorized": [], "dense": ["model.format=dense", "tensor.layers=[]"]}
RUNS = Path("runs/quality")
FIGURE = Path("docs/quickstart.png")


def run(side: str, seed: int) -> Path:
    """Trains one side with one seed (or finds it finished); returns its run directory."""
    name = f"{side}_{seed}"
    command = [Path(sys.executable).parent / "deepspeed", "--num_accelerators", "2", "launch/pretrain.py"]
    command += ["--config", "configs/quickstart.yaml", f"run.directory={RUNS}", f"run.name={name}", f"run.seed={seed}"]
    command += ["wandb.mode=disabled", *SIDES[side]]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return RUNS / name


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


def draw(directories: dict[str, Path]) -> None:
    figure = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    by_tokens, by_time = figure.subplots(1, 2, sharey=True)
    for side, directory in directories.items():
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        size = f"{side}, {records[-1]['params'] / 1e6:.2f} M parameters"
        losses = [r["loss"] for r in records]
        by_tokens.plot([r["tokens"] / 1e6 for r in records], losses, label=size)
        # Time in steps, without validation: the same work on both sides.
        seconds, times = 0.0, []
        for before, record in zip([0] + [r["step"] for r in records], records, strict=False):
            seconds += (record["step"] - before) * record["step_ms"] / 1000
            times.append(seconds)
        by_time.plot(times, losses, label=size)
    by_tokens.set(xlabel="million tokens", ylabel="training loss (nats per token)")
    by_time.set(xlabel="seconds on two CPU cores")
    for axes in (by_tokens, by_time):
        axes.grid(alpha=0.3)
    by_tokens.legend()
    figure.savefig(FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    directories, rows = {}, []
    for seed in range(1, parser.parse_args().seeds + 1):
        for side in SIDES:
            directory = run(side, seed)
            directories.setdefault(side, directory)
            rows.append(row(side, seed, directory))
    draw(directories)
    report("quality", rows, "quickstart and its dense twin at equal tokens, Python standard library")


if __name__ == "__main__":
    main()
