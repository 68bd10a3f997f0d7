"""What rank adaptation costs and what it gains: python benchmarks/ranks.py

Speed: the same model with half of its ranks masked (gates at zero, as in CoMERA's public code) and with half of them
cut, both sides in turn in one run, one process with all cores. Memory: the resident memory that three steps need,
each side in a process of its own. Sync and rebuild: seconds of each, two processes with one thread each.

Shapes: G gates, the indices of all bonds in order.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch

from benchmarks.commands import BIN, result_of
from benchmarks.report import ratios, report, spread, times_in_turn
from comera_dist.config.reader import read_config
from comera_dist.runtime.processes import Processes, leave, start_processes

BASE = "benchmarks/tensor_train.yaml"
VOCABULARY = 4096
WARM_UP, REPEATS = 2, 9
ADAPTING = ("tensor.layers=[]", "ranks.adapt=true")
SIX_ENCODER_SIZED = (
    *("model.d_model=768", "model.layers=6", "model.heads=12", "model.d_ff=2048", "train.batch_tokens=1024"),
    *ADAPTING,
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
    *("model.d_model=1024", "model.layers=24", "model.heads=16", "model.d_ff=2736", "train.batch_tokens=512"),
    *("tensor.rank=128", "tensor.outer_rank=64"),
    *ADAPTING,
)


def side_of(name: str, side: str, processes: Processes):
    """The decoder of a case after one step, with the upper half of every bond masked or cut."""
    from benchmarks.decoder_side import DecoderSide

    subject = DecoderSide(read_config(BASE, [*CASES[name]]), processes, VOCABULARY)
    subject.step()
    if side == "cut":
        rebuild(subject, one_in=2)
    else:
        gates = subject.engine.gates
        gates.write(gates.copy().masked_fill(upper_indices(subject.engine, one_in=2), 0.0))
    return subject


def upper_indices(engine, one_in: int) -> torch.Tensor:
    """Marks (G,) the upper indices of every bond, one in `one_in` of them, rounded down."""
    from comera_dist.ranks.layout import GateLayout

    ranks = GateLayout.of(engine.resizable).ranks_B.tolist()
    return torch.cat([torch.arange(rank) >= rank - rank // one_in for rank in ranks])


def rebuild(side, one_in: int) -> float:
    """Cuts `upper_indices`; returns the seconds of the rebuild and of the step after it."""
    from comera_dist.models.decoder.model import Decoder
    from comera_dist.ranks import rebuild as rebuilding
    from comera_dist.ranks.layout import GateLayout
    from comera_dist.ranks.policy import Decision
    from comera_dist.ranks.resize import Resize
    from comera_dist.runtime.engine import Engine

    cut_G, layout = upper_indices(side.engine, one_in), GateLayout.of(side.engine.resizable)
    start = time.perf_counter()
    resize = Resize(layout, Decision(cut_G, torch.zeros_like(layout.ranks_B)), seed=0, balances=True)
    side.plan = resize.plan(side.plan)
    side.engine = rebuilding.rebuild(
        side.engine,
        resize,
        lambda: Decoder(side.config.model, side.plan, generator=None),
        lambda model: Engine(model, side.config, side.processes),
    )
    side.step()
    return time.perf_counter() - start


def compare(name: str, processes: Processes) -> list[dict]:
    sides = {side: side_of(name, side, processes) for side in ("masked", "cut")}
    times = times_in_turn({label: side.seconds for label, side in sides.items()}, WARM_UP, REPEATS)
    return [
        {
            "case": name,
            "side": label,
            "parameters": side.parameters,
            "step ms: median (range)": spread([1000 * t for t in times[label]]),
            "tokens/s": round(side.tokens / statistics.median(times[label])),
            "times as fast": spread(ratios(times["masked"], times["cut"]), 2) if label == "cut" else "1",
            "resident MiB in a step": int(result_of([sys.executable, __file__, "--memory-of", name, label])),
        }
        for label, side in sides.items()
    ]


def print_memory(name: str, side: str, processes: Processes) -> None:
    """Prints the peak MiB of three steps once everything is set up: the kernel's high-water mark is reset first."""
    from comera_dist.runtime.memory import peak_memory_bytes

    subject = side_of(name, side, processes)
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        subject.step()
    print(peak_memory_bytes() >> 20)


def time_adaptation(processes: Processes) -> None:
    """Prints seconds of a step, a sync, a balancing in place and a rebuild as JSON. On two processes."""
    from benchmarks.decoder_side import DecoderSide
    from comera_dist.ranks.adaptation import RankAdaptation
    from comera_dist.ranks.rebuild import rebalance

    result = {}
    for name, overrides in {
        "4 layers, d=256, rank 64": ("ranks.adapt=true",),
        "24 layers, d=1024, rank 128": LARGE,
    }.items():
        # No index is unimportant enough to be cut: the benchmark cuts by itself.
        config = read_config(BASE, [*overrides, "ranks.sync_every=100", "ranks.policy.shrink_when=1"])
        side = DecoderSide(config, processes, VOCABULARY)
        side.step()
        figures = {"parameters": side.parameters, "sync": [], "balance": []}
        ranks = RankAdaptation(config, side.plan, side.parameters, side.engine)
        ranks.start(None)
        figures["step"] = [side.seconds() for _ in range(5)]
        for repeat in range(1, 6):
            start = time.perf_counter()
            _, resize = ranks.sync(100 * repeat)
            synced = time.perf_counter()
            rebalance(side.engine, resize)
            ranks.resized(side.engine)
            figures["sync"].append(synced - start)
            figures["balance"].append(time.perf_counter() - synced)
        del ranks
        figures["rebuild"] = [rebuild(side, one_in=10) for _ in range(3)]
        result[name] = figures
    processes.say(json.dumps(result))
    leave(processes, 0)


def adaptation_rows() -> list[dict]:
    command = [BIN / "torchrun", "--standalone", "--nproc_per_node", "2", __file__, "--time-adaptation"]
    rows = []
    for name, figures in json.loads(result_of(command)).items():
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
    processes = start_processes()
    if arguments.time_adaptation:
        time_adaptation(processes)
        return
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if arguments.memory_of:
        print_memory(*arguments.memory_of, processes)
        return
    threads = torch.get_num_threads()
    title = f"half of all ranks masked against cut, fp32, {threads} threads, median of {REPEATS} in turn"
    report("ranks_speed", [row for name in CASES for row in compare(name, processes)], title)
    report("ranks_cost", adaptation_rows(), "rank adaptation, two processes with one thread each, fp32, ZeRO 1")


if __name__ == "__main__":
    main()
