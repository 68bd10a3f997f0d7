"""Training steps of tensorized models against their dense twins, both sides in turn in one run.

    python benchmarks/step.py

A step is what the trainer does: forward, backward, clipping, AdamW, through DeepSpeed, on one process with all cores.
Peak memory is that of a process of its own for each side.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
from report import report, spread, times_in_turn

from comera_dist.config import Config
from comera_dist.config_reader import read_config
from comera_dist.runtime.processes import Processes, start_processes

VOCABULARY = 4096
WARM_UP, REPEATS = 2, 9
SIDES = {"tensorized": [], "dense": ["model.format=dense"]}


@dataclass(frozen=True)
class Case:
    """A model and a batch; its overrides come on top of the quickstart's configuration."""

    name: str
    overrides: tuple[str, ...]

    def config(self, side: str) -> Config:
        return read_config("configs/quickstart.yaml", [*self.overrides, *SIDES[side]])


WIDE = (
    "model.d_model=768",
    "model.layers=6",
    "model.heads=12",
    "model.d_ff=2048",
    "train.batch_tokens=1024",
    "tensor.rank=32",
    "tensor.outer_rank=32",
    "tensor.layers=[]",
)
CASES = (
    Case("quickstart: d=256, 4 layers, seq 128, batch 16", ()),
    Case("d=768, 6 layers, seq 128, batch 8, rank 32", WIDE),
    # How much of that is the linear layers' alone.
    Case(
        "the same, vocabulary dense on both sides", (*WIDE, "model.format.embedding=dense", "model.format.head=dense")
    ),
)


class Side:
    """One model, ready to step."""

    def __init__(self, config: Config, processes: Processes):
        from comera_dist.data.batches import Batch
        from comera_dist.models.decoder import Decoder
        from comera_dist.models.plan import plan_decoder
        from comera_dist.runtime.engine import Engine

        model = Decoder(config.model, plan_decoder(config, VOCABULARY), torch.Generator().manual_seed(1))
        self.parameters = sum(p.numel() for p in model.parameters())
        self.engine = Engine(model, config, processes)
        shape = (config.train.batch_tokens // config.data.seq_len, config.data.seq_len)
        tokens = torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(2))
        self.batch = Batch(tokens, tokens.roll(-1, dims=1))
        self.tokens = tokens.numel()

    def seconds(self) -> float:
        start = time.perf_counter()
        self.engine.step([self.batch], lr=1e-3)
        return time.perf_counter() - start


def compare(case: Case, processes: Processes) -> list[dict]:
    sides = {name: Side(case.config(name), processes) for name in SIDES}
    times = times_in_turn({name: side.seconds for name, side in sides.items()}, WARM_UP, REPEATS)
    ratios = [dense / ours for dense, ours in zip(times["dense"], times["tensorized"], strict=True)]
    return [
        {
            "case": case.name,
            "side": name,
            "parameters": side.parameters,
            "step ms: median (range)": spread([1000 * t for t in times[name]]),
            "tokens/s": round(side.tokens / statistics.median(times[name])),
            "times as fast": spread(ratios, 2) if name == "tensorized" else "1",
            "peak memory MiB": peak_mebibytes(case, name),
        }
        for name, side in sides.items()
    ]


def peak_mebibytes(case: Case, side: str) -> int:
    """Peak resident memory of a process that trains only this side for three steps."""
    command = [sys.executable, __file__, "--memory-of", str(CASES.index(case)), side]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    processes = start_processes()
    if arguments.memory_of:
        from comera_dist.runtime.memory import peak_memory_bytes

        case, name = arguments.memory_of
        side = Side(CASES[int(case)].config(name), processes)
        for _ in range(3):
            side.seconds()
        print(peak_memory_bytes() >> 20)
        return
    rows = [row for case in CASES for row in compare(case, processes)]
    report(
        "step",
        rows,
        f"training step, fp32, one process, {torch.get_num_threads()} threads, median of {REPEATS}, sides in turn",
    )


if __name__ == "__main__":
    main()
