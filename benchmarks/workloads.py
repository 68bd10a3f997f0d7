"""The published workloads on data at hand: python benchmarks/workloads.py NAME [--seeds 3]

Names: mnli, snli, code, movielens, adult, and six-encoder, the published size, for speed, memory and compression only.
With --side only that side is measured, and joins the sides in the table that was written before.
Every side is a run of launch/pretrain.py with the same data and seeds. Two runs of one thread run at a time, or one of
two threads if speed is measured. Of each run, the checkpoint of its final size with the lowest validation loss counts;
launch/evaluate.py reads its held-out figures on a split that was used for no choice. Finished runs are not repeated.
Data are prepared by the commands in workloads.md and in the heads of the configurations.
"""

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.commands import output_of
from benchmarks.quality.sides import block_trains, blocks, vocabulary
from benchmarks.report import report, reported

RUNS = Path("runs/workloads")
DENSE = ("model.format=dense", "tensor.embeddings=[]", "tensor.layers=[]")
EARLY = ("ranks.adapt=true", "ranks.sync_every=50")


def late(target: str, *more: str) -> tuple[str, ...]:
    return (*EARLY, "ranks.late_start=0.2", "ranks.late_end=0.5", f"ranks.{target}", *more)


@dataclass(frozen=True)
class Workload:
    """`sides` maps the name of a side to its overrides; `split` is the held-out split, None for no held-out figures."""

    config: str
    split: str | None
    sides: dict[str, tuple[str, ...]]
    threads: int = 1  # of a run


def embeddings(compression: int) -> tuple[str, ...]:
    return late(f"target_compression={compression}", "ranks.layers=['tables.*']")


def in_all_precisions(side: str, overrides: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """A side in fp32, and again in bf16 and fp8."""
    return {
        side: overrides,
        **{f"{side}, {precision}": (*overrides, f"train.precision={precision}") for precision in ("bf16", "fp8")},
    }


def galore(rate: float) -> tuple[str, ...]:
    """GaLore at rank d/4; it scales its updates by 1/4, so its rate is four times AdamW's."""
    return *DENSE, "optim.kind=galore", "optim.galore.rank=32", f"optim.lr={rate}"


def spectral(table_rate: float, *more: str) -> tuple[str, ...]:
    """The quickstart's optimizer."""
    return "optim.kind=spectral", f"optim.table_lr_scale={table_rate}", *more


def narrow(d_model: int) -> tuple[str, ...]:
    return "model.format=dense", *width(d_model), "model.heads=2"


def width(d_model: int) -> tuple[str, ...]:
    return f"model.d_model={d_model}", f"model.d_ff={4 * d_model}"


STAGES = {
    "dense": DENSE,
    "early stage": EARLY,
    "late stage, 0.8": late("target_fraction=0.8"),
    "late stage, 0.5": late("target_fraction=0.5"),
    "late stage, 0.2": late("target_fraction=0.2"),
}
SNLI_SIDES = {
    "dense GaLore": galore(0.002),
    # Each rate is the best of four on the validation split, with seed 1.
    "dense, spectral": spectral(8, "optim.lr=2e-3", *DENSE),
    "narrower dense, spectral": spectral(8, "optim.lr=1e-3", *narrow(34)),
    "block trains, spectral": spectral(8, "optim.lr=2.5e-4", *block_trains(2, 16)),
    "blocks that share, spectral": spectral(
        8, "optim.lr=5e-4", *blocks("shared", *vocabulary(16), *width(88), vocabulary="low_rank")
    ),
    "narrower dense, low-rank vocabulary, spectral": spectral(
        8, "optim.lr=2e-3", *blocks("dense", *vocabulary(16), *width(64), vocabulary="low_rank")
    ),
}
SNLI = ("data.corpus=corpora/snli", "train.steps=700")
# Overrides of the six-encoder. The corpus has fewer words than the published vocabulary.
SHORT = ("data.corpus=corpora/mnli", "eval.max_tokens=40000", "log.every=10")
CUT = (*SHORT, "train.steps=100", "ranks.sync_every=10")
FIXED = ("ranks={}", "tensor.layers=[]", "tensor.embeddings=[]")

WORKLOADS = {
    "six-encoder": Workload(
        "configs/mnli_six_encoder.yaml",
        None,
        {
            "dense": (*SHORT, "train.steps=30", "ranks={}", *DENSE),
            "early stage": (*SHORT, "train.steps=200", "ranks.sync_every=10"),
            "late stage, 0.8": (*CUT, "ranks.target_fraction=0.8"),
            "late stage, 0.5": (*CUT, "ranks.target_fraction=0.5"),
            "late stage, 0.2": (*CUT, "ranks.target_fraction=0.2"),
            **{
                f"block trains of rank {rank}, spectral": (
                    *SHORT,
                    "train.steps=30",
                    *FIXED,
                    *spectral(8, *block_trains(rank, 32)),
                )
                for rank in (1, 4)
            },
        },
        threads=2,
    ),
    "mnli": Workload("configs/mnli_small.yaml", "test", STAGES),
    # With the pairs at hand, accuracy on MNLI stays near chance; on SNLI it does not.
    "snli": Workload(
        "configs/mnli_small.yaml",
        "test",
        {side: (*SNLI, *overrides) for side, overrides in (STAGES | SNLI_SIDES).items()},
    ),
    "code": Workload(
        "configs/codebert_small.yaml",
        "test",
        {
            "dense AdamW": (*DENSE, "optim.table_lr_scale=8"),
            "dense GaLore": galore(0.008),
            "dense Muon": (*DENSE, "optim.kind=muon"),
            "early stage": EARLY,
            "late stage, published size": late("target_params=441500"),
            "dense, spectral": spectral(8, "optim.lr=1e-3", *DENSE),
            # Each with the best rate of four on the validation split, with seed 1.
            "dense d=64, AdamW": (*DENSE, *width(64), "optim.lr=4e-3", "optim.table_lr_scale=8"),
            "dense d=64, Muon": (
                *DENSE,
                *width(64),
                *("optim.kind=muon", "optim.matrix_lr_scale=2", "optim.table_lr_scale=8"),
            ),
            "dense d=64, spectral": spectral(8, *DENSE, *width(64)),
            "narrower dense, spectral": spectral(8, *narrow(42)),
            "narrower dense, low-rank vocabulary, spectral": spectral(
                8, *blocks("dense", *vocabulary(28), *width(64), vocabulary="low_rank")
            ),
            "blocks that share, spectral": spectral(8, *blocks("shared", *vocabulary(26), vocabulary="low_rank")),
            "block trains, spectral, published size": spectral(
                4, *block_trains(3, 32), *late("target_params=441500", "ranks.layers=['bert.encoder.*']")
            ),
        },
    ),
    "movielens": Workload(
        "configs/dlrm_movielens.yaml",
        "test",
        {
            **in_all_precisions("dense", DENSE),
            "embeddings 10 times smaller": embeddings(10),
            **in_all_precisions("embeddings 30 times smaller", embeddings(30)),
            "embeddings 99 times smaller": embeddings(99),
        },
    ),
    # Its tables have 110 rows in all, so rank 1, the smallest, is 10 times smaller.
    "adult": Workload(
        "configs/dlrm_adult.yaml",
        "test",
        {
            **in_all_precisions("dense", DENSE),
            **in_all_precisions("embeddings 4.4 times smaller", ("tensor.embedding_rank=2",)),
            "embeddings 10.6 times smaller": ("tensor.embedding_rank=1",),
        },
    ),
}


def run(name: str, side: str, seed: int) -> Path:
    """Trains a side with a seed, unless it is finished; returns its run directory."""
    workload, directory = WORKLOADS[name], RUNS / name
    run_name = f"{side.replace(', ', '_').replace(' ', '_')}_{seed}"
    place = [f"run.directory={directory}", f"run.name={run_name}", f"run.seed={seed}"]
    keeping = ["checkpoint.keep=999", "wandb.mode=disabled"]
    command = [sys.executable, "launch/pretrain.py", "--config", workload.config, *place, *keeping]
    output_of([*command, *workload.sides[side]], workload.threads)
    return directory / run_name


def row(name: str, side: str, seed: int, directory: Path) -> dict:
    """Size, held-out figures, speed and memory of a run."""
    summary = json.loads((directory / "summary.json").read_text())
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    at_size = [record for record in records[1:] if record["params"] == summary["params"]]
    split = WORKLOADS[name].split
    return {
        "side": side,
        "seed": seed,
        "parameters": summary["params"],
        "compression": round(summary["compression"], 2),
        **(held_out(directory, split, at_size) if split else {}),
        "step ms": round(statistics.median(r["step_ms"] for r in at_size), 1),
        "data wait": f"{statistics.median(r['data_wait_fraction'] for r in at_size):.2%}",
        "peak MiB": max(r["peak_memory_bytes"] for r in records) >> 20,
    }


def held_out(directory: Path, split: str, records: list[dict]) -> dict:
    """Figures on the validation split and on `split` at the checkpoint with the lowest validation loss in `records`."""
    saved = {int(folder.name[5:]) for folder in (directory / "checkpoints").glob("step_*")}
    candidates = [record for record in records if record["step"] in saved and "val_loss" in record]
    best = min(candidates, key=lambda record: record["val_loss"])
    command = [sys.executable, "launch/evaluate.py", "--run", str(directory), "--step", str(best["step"]), "--json"]
    text = output_of([*command, "--split", split])
    found = json.loads(text[text.index("{") :])
    figures = {key: value for key, value in found.items() if key not in ("run", "step", "corpus", "split", "targets")}
    return {
        "best step": best["step"],
        **{f"validation {key}": round(best[f"val_{key}"], 4) for key in figures},
        **{f"held-out {key}": round(value, 4) for key, value in figures.items()},
    }


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
    parser.add_argument("--side", action="append", help="only this side; may be given several times")
    arguments = parser.parse_args()
    name, sides = arguments.workload, arguments.side or list(WORKLOADS[arguments.workload].sides)
    tasks = [(side, seed) for seed in range(1, arguments.seeds + 1) for side in sides]
    threads = WORKLOADS[name].threads
    with ThreadPoolExecutor(2 // threads) as pool:
        rows = list(pool.map(lambda task: row(name, *task, run(name, *task)), tasks))
    before = reported(f"workload_{name}_runs") if arguments.side else []
    rows = [r for r in before if r["side"] not in sides] + rows
    report(f"workload_{name}_runs", rows, f"{name}: every run")
    if WORKLOADS[name].split:
        report(f"workload_{name}", means(rows), f"{name}: mean and range over seeds, {threads} thread(s) a run")


if __name__ == "__main__":
    main()
