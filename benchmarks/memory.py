"""Predicted and measured peak memory of a step: python benchmarks/memory.py [--quick]

Each measurement is a process of its own with one thread. After two steps of a tiny model it notes its resident memory,
then it makes two steps of the case through the trainer's engine. The measured figure is how far the peak of resident
memory rises. It is taken twice: with an allocator that returns each large tensor to the system as soon as it is freed,
which is what `launch/estimate.py` predicts, and as the trainer runs on a CPU, where freed memory stays in the process.

With --quick (a tiny model) the table is only printed.
"""

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import psutil
import torch
import torch.distributed as dist

from benchmarks.commands import result_of
from benchmarks.report import report, show
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.memory import estimate_memory
from comera_dist.costs.of_run import plan_run
from comera_dist.models.family import build_model, kind_of
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.memory import peak_resident_bytes
from comera_dist.runtime.processes import Processes, start_processes

MIB = 2**20
VOCABULARY = 4096
SHARED = ["train.steps=2", "wandb.mode=disabled", "model.heads=6", "model.d_model=384", "model.layers=4"]
DECODER = [*SHARED, "model.d_ff=1024"]
DENSE = [*DECODER, "model.format=dense"]
ENCODER = ["model.kind=encoder", *SHARED, "model.d_ff=1536", "model.dropout=0.1", "model.format=tensor"]
TINY = ["model.d_model=24", "model.layers=1", "model.d_ff=48", "data.seq_len=16", "train.batch_tokens=32"]
SHORT, LONG = (["data.seq_len=128", "train.batch_tokens=2048"], ["data.seq_len=2048", "train.batch_tokens=2048"])
MODES = ("none", "selective", "block")
NONE, BOTH = ("none",), ("none", "block")
# Name, overrides, and the values of train.activation_checkpointing.
Case = tuple[str, list[str], tuple[str, ...]]
CASES: list[Case] = [
    ("dense, 16 × 128", [*DENSE, *SHORT], MODES),
    ("dense, 1 × 2,048", [*DENSE, *LONG], MODES),
    ("block_train, 1 × 2,048", [*DECODER, *LONG, "model.format=block_train"], MODES),
    ("tensor, 1 × 2,048", [*DECODER, *LONG, "model.format=tensor"], MODES),
    ("tensor, 16 × 128", [*DECODER, *SHORT, "model.format=tensor"], NONE),
    ("dense, 16 × 128, ZeRO stage 0", [*DENSE, *SHORT, "train.zero_stage=0"], NONE),
    ("dense, 16 × 128, ZeRO stage 3", [*DENSE, *SHORT, "train.zero_stage=3"], BOTH),
    ("dense, 16 × 128, micro batches of 4", [*DENSE, *SHORT, "train.micro_batch=4"], NONE),
    ("dense, 1 × 2,048, bf16", [*DENSE, *LONG, "train.precision=bf16"], NONE),
    ("dense, 1 × 2,048, fp8", [*DENSE, *LONG, "train.precision=fp8"], NONE),
    ("encoder, tensor, 16 × 128", [*ENCODER, *SHORT], BOTH),
]
# Few tokens, so what the optimizer keeps counts. Ranks are those of the arena (benchmarks/quality/arena.py), d/4.
FEW = ["data.seq_len=128", "train.batch_tokens=256", "train.zero_stage=0"]
RANK = 384 // 4
METHODS = {
    "adamw": [],
    "muon": [],
    "spectral": [],
    "soap": [],
    "dion": ["optim.dion.rank_fraction=0.25"],
    "galore": [f"optim.galore.rank={RANK}"],
    "fira": [f"optim.fira.rank={RANK}"],
    "apollo": [f"optim.apollo.rank={RANK}"],
    "apollo_mini": [],
    "gum": [f"optim.gum.rank={RANK}"],
    "relora": [f"optim.relora.rank={RANK}", "optim.relora.full_rank_steps=0"],
    "mlorc": [],
    "mofasgd": [f"optim.mofasgd.rank={RANK}"],
}
CASES += [
    (f"dense, 2 × 128, stage 0, {kind}", [*DENSE, *FEW, f"optim.kind={kind}", *more], NONE)
    for kind, more in METHODS.items()
]
# Whole matrices are dealt out at stages above 0, with copies of their own.
CASES += [
    (
        f"dense, 2 × 128, stage {stage}, {kind}",
        [*DENSE, *FEW, f"train.zero_stage={stage}", f"optim.kind={kind}", *METHODS[kind]],
        NONE,
    )
    for stage, kind in ((1, "adamw"), (1, "spectral"), (1, "muon"), (1, "galore"), (2, "spectral"), (3, "spectral"))
]
CASES += [
    (
        f"dense, 2 × 128, stage 0, {kind}, moments in {form}",
        [*DENSE, *FEW, f"optim.kind={kind}", f"optim.moments={form}"],
        NONE,
    )
    for form in ("bf16", "8bit")
    for kind in ("adamw", "spectral")
]
FORMATS = {
    "low_rank": ("adamw", "loro"),
    "bottleneck": ("adamw",),
    "sltrain": ("adamw",),
    "block_train": ("adamw", "spectral"),
}
CASES += [
    (
        f"{format}, 2 × 128, stage 0, {kind}",
        [
            *DECODER,
            *FEW,
            f"model.format={{rest: dense, attention: {format}, mlp: {format}}}",
            f"tensor.rank={RANK}",
            f"optim.kind={kind}",
        ],
        NONE,
    )
    for format, kinds in FORMATS.items()
    for kind in kinds
]
# glibc maps each block of this size and more by itself, and returns it when it is freed.
RETURNS_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def rows_of(cases: list[Case]) -> Iterator[dict]:
    """A row for each case and mode."""
    for name, overrides, modes in cases:
        for mode in modes:
            yield row_of(name, mode, [*overrides, f"train.activation_checkpointing={mode}"])


def row_of(name: str, mode: str, overrides: list[str]) -> dict:
    """Prediction and both measurements in MiB."""
    predicted = predicted_bytes(read_config(None, overrides))
    command = [sys.executable, __file__, *overrides]
    with ThreadPoolExecutor(2) as pool:
        returned, kept = map(
            int, pool.map(result_of, ([*command, "--measure"], [*command, "--measure", "--keep-freed"]))
        )
    return {
        "decoder, or as named": name,
        "recomputed": mode,
        "predicted MiB": round(predicted / MIB),
        "measured MiB": round(returned / MIB),
        "error": f"{predicted / returned - 1:+.1%}",
        "resident MiB in the trainer": round(kept / MIB),
    }


def predicted_bytes(config: Config) -> int:
    plan = plan_run(config, VOCABULARY)
    figures = estimate(config, plan, 1, config.tokens_per_forward(1))
    memory = estimate_memory(config, plan, figures, 1)
    assert memory is not None
    return memory.peak


def print_growth(overrides: list[str], keeps_freed: bool) -> None:
    """Prints by how many bytes the peak of resident memory rises in two steps."""
    torch.set_num_threads(1)
    processes = start_processes() if keeps_freed else _started()
    make_steps(read_config(None, [*overrides, *TINY, "train.micro_batch=null"]), processes)
    gc.collect()
    before = psutil.Process().memory_info().rss
    make_steps(read_config(None, overrides), processes)
    print(peak_resident_bytes() - before)


def _started() -> Processes:
    """As start_processes, without its setting that keeps freed memory."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return Processes(0, 1, torch.device("cpu"))


def make_steps(config: Config, processes: Processes) -> None:
    plan, rows = plan_run(config, VOCABULARY), config.micro_batch(1)
    model = build_model(config.model, plan, torch.Generator().manual_seed(0))
    engine = Engine(model, config, processes)
    tokens_BS, *others = kind_of(config.model).blank_batch(config, rows)
    batch = (tokens_BS.random_(1, VOCABULARY), *others)
    for _ in range(2):
        engine.step([batch] * (config.global_batch // rows), lr=1e-3)
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a tiny model, printed only")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--keep-freed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print_growth(arguments.overrides, arguments.keep_freed)
        return
    os.environ |= RETURNS_FREED
    title = "Peak memory of a step, d=384, 4 layers, vocabulary 4,096, one process, ZeRO stage 1 unless named"
    if arguments.quick:
        show(list(rows_of([("tiny", [*DECODER, *TINY], MODES)])), title)
        return
    rows = []
    for row in rows_of(CASES):
        print(row, flush=True)
        rows.append(row)
    report("memory_cpu", rows, title)


if __name__ == "__main__":
    main()
