"""What rank adaptation costs and what it gains: python benchmarks/ranks.py

Speed: the same model with half of its ranks masked (gates at zero, as in CoMERA's public code) and with half of them
cut, both sides in turn in one run, one process with all cores. Memory: the resident memory that three steps need,
each side in a process of its own. Sync and rebuild: seconds of their own, two processes with one thread each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch

from benchmarks.report import report, spread, times_in_turn
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.runtime.processes import Processes, leave, start_processes

VOCABULARY = 4096
WARM_UP, REPEATS = 2, 9
SIX_ENCODER_SIZED = (
    "model.d_model=768",
    "model.layers=6",
    "model.heads=12",
    "model.d_ff=2048",
    "train.batch_tokens=1024",
    "tensor.layers=[]",
    "ranks.adapt=true",
)
CASES = {
    f"d=768, 6 layers, seq 128, batch 8, rank {rank}": (
        *SIX_ENCODER_SIZED,
        f"tensor.rank={rank}",
        f"tensor.outer_rank={min(rank, 64)}",
        f"tensor.embedding_rank={min(rank, 64)}",
    )
    for rank in (32, 128, 256)
}
# 28.6 M stored parameters, 311 M dense.
LARGE = (
    "model.d_model=1024",
    "model.layers=24",
    "model.heads=16",
    "model.d_ff=2736",
    "train.batch_tokens=512",
    "tensor.rank=128",
    "tensor.outer_rank=64",
    "tensor.layers=[]",
    "ranks.adapt=true",
)


class Side:
    """A model whose lower half of every bond is masked or cut, ready to step."""

    def __init__(self, config: Config, processes: Processes, is_cut: bool):
        from comera_dist.data.windows import TextBatch
        from comera_dist.models.decoder.model import Decoder
        from comera_dist.models.decoder.plan import plan_decoder
        from comera_dist.ranks.layout import GateLayout
        from comera_dist.runtime.engine import Engine

        self.config, self.plan = config, plan_decoder(config, VOCABULARY)
        model = Decoder(config.model, self.plan, torch.Generator().manual_seed(1))
        self.engine = Engine(model, config, processes)
        self.layout = GateLayout.of(self.engine.resizable)
        tokens = torch.randint(VOCABULARY, (config.global_batch, config.data.seq_len))
        share = tokens.chunk(processes.count)[processes.index]
        self.batch, self.tokens = TextBatch(share, share.roll(-1, dims=1)), tokens.numel()
        self.seconds()
        if is_cut:
            self.rebuild(half(self.layout))
        else:
            self.engine.gates.write(self.engine.gates.copy().masked_fill(half(self.layout), 0.0))

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.plan.values())

    def rebuild(self, cut_G: torch.Tensor) -> float:
        from comera_dist.models.decoder.model import Decoder
        from comera_dist.ranks.layout import GateLayout
        from comera_dist.ranks.policy import Decision
        from comera_dist.ranks.rebuild import rebuild
        from comera_dist.ranks.resize import Resize
        from comera_dist.runtime.engine import Engine

        processes = self.engine.processes
        start = time.perf_counter()
        nothing = torch.zeros_like(self.layout.ranks_B)
        resize = Resize(self.layout, Decision(cut_G, nothing), seed=0, balances=True)
        self.plan = resize.plan(self.plan)
        self.engine = rebuild(
            self.engine,
            resize,
            lambda: Decoder(self.config.model, self.plan, generator=None),
            lambda model: Engine(model, self.config, processes),
        )
        self.layout = GateLayout.of(self.engine.resizable)
        self.seconds()
        return time.perf_counter() - start

    def seconds(self) -> float:
        start = time.perf_counter()
        self.engine.step([self.batch], lr=1e-3)
        return time.perf_counter() - start


def half(layout) -> torch.Tensor:
    """Marks the upper half of the indices of every bond."""
    ranks = layout.ranks_B.tolist()
    return torch.cat([torch.arange(rank) >= (rank + 1) // 2 for rank in ranks])


def compare(name: str, processes: Processes) -> list[dict]:
    config = read_config("configs/quickstart.yaml", [*CASES[name]])
    sides = {side: Side(config, processes, side == "cut") for side in ("masked", "cut")}
    times = times_in_turn({label: side.seconds for label, side in sides.items()}, WARM_UP, REPEATS)
    ratios = [masked / cut for masked, cut in zip(times["masked"], times["cut"], strict=True)]
    return [
        {
            "case": name,
            "side": label,
            "parameters": side.parameters,
            "step ms: median (range)": spread([1000 * t for t in times[label]]),
            "tokens/s": round(side.tokens / statistics.median(times[label])),
            "times as fast": spread(ratios, 2) if label == "cut" else "1",
            "resident MiB in a step": resident_mebibytes(name, label),
        }
        for label, side in sides.items()
    ]


def resident_mebibytes(name: str, side: str) -> int:
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", name, side], capture_output=True, text=True, check=True
    )
    return int(done.stdout.splitlines()[-1])


def print_memory(name: str, side: str, processes: Processes) -> None:
    """The most memory that three steps take once everything is set up: the kernel's high-water mark starts anew."""
    from comera_dist.runtime.memory import peak_memory_bytes

    subject = Side(read_config("configs/quickstart.yaml", [*CASES[name]]), processes, side == "cut")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        subject.seconds()
    print(peak_memory_bytes() >> 20)


def time_adaptation(processes: Processes) -> None:
    """Prints seconds of a step, a sync, a balancing in place and a rebuild as JSON. On two processes."""
    from comera_dist.models.decoder.plan import plan_decoder
    from comera_dist.ranks.adaptation import RankAdaptation
    from comera_dist.ranks.rebuild import rebalance

    result = {}
    for name, overrides in {"quickstart": ("ranks.adapt=true",), "24 layers, d=1024, rank 128": LARGE}.items():
        # Nothing is worth a cut: the benchmark does its own.
        config = read_config(
            "configs/quickstart.yaml", [*overrides, "ranks.sync_every=100", "ranks.policy.shrink_when=1"]
        )
        side = Side(config, processes, is_cut=False)
        figures = {"parameters": side.parameters}
        ranks = RankAdaptation(config, plan_decoder(config, VOCABULARY), side.parameters, side.engine)
        ranks.start(None)
        figures["step"] = [side.seconds() for _ in range(5)]
        figures["sync"], figures["balance"] = [], []
        for repeat in range(1, 6):
            start = time.perf_counter()
            _, resize = ranks.sync(100 * repeat)
            figures["sync"].append(time.perf_counter() - start)
            start = time.perf_counter()
            rebalance(side.engine, resize)
            ranks.resized(side.engine)
            figures["balance"].append(time.perf_counter() - start)
        del ranks
        figures["rebuild"] = [side.rebuild(tenth(side.layout)) for _ in range(3)]
        result[name] = figures
    processes.say(json.dumps(result))
    leave(processes, 0)


def tenth(layout) -> torch.Tensor:
    return torch.cat([torch.arange(rank) >= rank - rank // 10 for rank in layout.ranks_B.tolist()])


def adaptation_rows() -> list[dict]:
    command = ["torchrun", "--standalone", "--nproc_per_node", "2", __file__, "--time-adaptation"]
    done = subprocess.run(
        [Path(sys.executable).parent / command[0], *command[1:]],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = []
    for name, figures in json.loads(done.stdout.splitlines()[-1]).items():
        step, sync, balance = (statistics.median(figures[key]) for key in ("step", "sync", "balance"))
        rows.append(
            {
                "model": name,
                "parameters": figures["parameters"],
                "step ms": spread([1000 * t for t in figures["step"]]),
                "sync ms": spread([1000 * t for t in figures["sync"]]),
                "sync, share of 100 steps": f"{sync / (100 * step):.3%}",
                "balancing ms": spread([1000 * t for t in figures["balance"]]),
                "balancing, share of 100 steps": f"{balance / (100 * step):.3%}",
                "rebuild s, with the step after it": spread(figures["rebuild"], 2),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    parser.add_argument("--time-adaptation", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time_adaptation:
        time_adaptation(start_processes())
        return
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    processes = start_processes()
    if arguments.memory_of:
        print_memory(*arguments.memory_of, processes)
        return
    title = (
        f"half of all ranks masked against cut, fp32, {torch.get_num_threads()} threads, median of {REPEATS} in turn"
    )
    report("ranks_speed", [row for name in CASES for row in compare(name, processes)], title)
    report("ranks_cost", adaptation_rows(), "rank adaptation, two processes with one thread each, fp32, ZeRO 1")


if __name__ == "__main__":
    main()
