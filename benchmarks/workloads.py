"""The published workloads on data at hand: python benchmarks/workloads.py {mnli,code,movielens,adult} [--seeds 3]

Every side is a run of launch/pretrain.py with the same data, steps and seeds, one process of one thread, two runs at a
time. Of each run the checkpoint of the lowest validation loss counts, among those of its final size; held-out figures
are then those of launch/evaluate.py on a split that chose nothing (the validation split where there is no other).
Runs that are finished are not run again. Data are prepared by the commands in the heads of the configurations.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from report import report

RUNS = Path("runs/workloads")
DENSE = ("model.format=dense", "tensor.embeddings=[]", "tensor.layers=[]")
EARLY = ("ranks.adapt=true", "ranks.sync_every=50", "ranks.late_start=0.2", "ranks.late_end=0.5")


def late(target: str, *more: str) -> tuple[str, ...]:
    return (*EARLY, f"ranks.{target}", *more)


@dataclass(frozen=True)
class Workload:
    """`sides` maps a side's name to its overrides of the configuration; figures are read on `split`."""

    config: str
    split: str
    sides: dict[str, tuple[str, ...]]


def embeddings(compression: int) -> tuple[str, ...]:
    return late(f"target_compression={compression}", "ranks.layers=['tables.*']")


WORKLOADS = {
    "mnli": Workload(
        "configs/mnli_small.yaml",
        "test",
        {
            "dense": DENSE,
            "early stage": EARLY,
            "late stage, 0.8": late("target_fraction=0.8"),
            "late stage, 0.5": late("target_fraction=0.5"),
            "late stage, 0.2": late("target_fraction=0.2"),
        },
    ),
    "code": Workload(
        "configs/codebert_small.yaml",
        "test",
        {
            "dense AdamW": DENSE,
            "dense GaLore": (*DENSE, "optim.kind=galore", "optim.galore.rank=64", "optim.lr=0.004"),
            "dense Muon": (*DENSE, "optim.kind=muon"),
            "early stage": EARLY,
            "late stage, published size": late("target_params=807500"),
        },
    ),
    "movielens": Workload(
        "configs/dlrm_movielens.yaml",
        "test",
        {
            "dense": DENSE,
            "embeddings 10 times smaller": embeddings(10),
            "embeddings 30 times smaller": embeddings(30),
            "embeddings 99 times smaller": embeddings(99),
        },
    ),
    # Its tables have 110 rows in all: 10 times smaller is rank 1, smaller they do not get.
    "adult": Workload(
        "configs/dlrm_adult.yaml",
        "test",
        {
            "dense": DENSE,
            "embeddings 4.4 times smaller": ("tensor.embedding_rank=2",),
            "embeddings 10.6 times smaller": ("tensor.embedding_rank=1",),
        },
    ),
}


def run(name: str, side: str, seed: int) -> Path:
    """Trains a side with a seed, or finds it finished; returns its run directory."""
    workload, directory = WORKLOADS[name], RUNS / name
    run_name = f"{side.replace(', ', '_').replace(' ', '_')}_{seed}"
    place = [f"run.directory={directory}", f"run.name={run_name}", f"run.seed={seed}"]
    keeping = ["checkpoint.keep=999", "wandb.mode=disabled"]
    command = [sys.executable, "launch/pretrain.py", "--config", workload.config, *place, *keeping]
    _call([*command, *workload.sides[side]])
    return directory / run_name


def row(name: str, side: str, seed: int, directory: Path) -> dict:
    """The figures of a run at its best checkpoint of its final size."""
    summary = json.loads((directory / "summary.json").read_text())
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    saved = {int(folder.name[5:]) for folder in (directory / "checkpoints").glob("step_*")}
    candidates = [r for r in records if r["step"] in saved and "val_loss" in r and r["params"] == summary["params"]]
    best = min(candidates, key=lambda record: record["val_loss"])
    command = [sys.executable, "launch/evaluate.py", "--run", str(directory), "--step", str(best["step"]), "--json"]
    text = _call([*command, "--split", WORKLOADS[name].split])
    found = json.loads(text[text.index("{") :])
    figures = {key: value for key, value in found.items() if key not in ("run", "step", "corpus", "split", "targets")}
    steady = [r["step_ms"] for r in records[1:]]
    return {
        "side": side,
        "seed": seed,
        "parameters": summary["params"],
        "compression": round(summary["compression"], 2),
        "best step": best["step"],
        **{f"validation {key}": round(best[f"val_{key}"], 4) for key in figures},
        **{f"held-out {key}": round(value, 4) for key, value in figures.items()},
        "step ms": round(statistics.median(steady), 1),
        "data wait": f"{statistics.median(r['data_wait_fraction'] for r in records[1:]):.2%}",
    }


def _call(command: list[str]) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def means(rows: list[dict]) -> list[dict]:
    """One row a side: mean and range of each held-out figure over the seeds."""
    result = []
    for side in dict.fromkeys(r["side"] for r in rows):
        mine = [r for r in rows if r["side"] == side]
        figures = {"side": side, "seeds": len(mine)}
        figures |= {key: round(statistics.mean(r[key] for r in mine), 2) for key in ("parameters", "compression")}
        for key in (key for key in mine[0] if key.startswith("held-out")):
            values = [r[key] for r in mine]
            figures[key] = f"{statistics.mean(values):.4f} ({min(values):.4f}–{max(values):.4f})"
        result.append(figures)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    name = arguments.workload
    tasks = [(side, seed) for seed in range(1, arguments.seeds + 1) for side in WORKLOADS[name].sides]
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda task: row(name, *task, run(name, *task)), tasks))
    report(f"workload_{name}_runs", rows, f"{name}: every run")
    report(f"workload_{name}", means(rows), f"{name}: mean and range over seeds, one thread a run, two runs at a time")


if __name__ == "__main__":
    main()
