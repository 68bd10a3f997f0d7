"""Training on 1, 2 and 4 processes over links of several rates, tensorized against dense: python benchmarks/scaling.py

The batch of each process stays the same (weak scaling): ideal tokens/s grow with the number of processes, and
efficiency is the reached share of the ideal. Both sides step in turn inside the same processes.

On CPUs a process has one thread and, where namespaces are permitted, its own link (`link.py`), unlimited or limited to
a rate. "gradient MiB" is the amount that each process sends in a ring all-reduce of the gradients, counted from the
plan by `comera_dist.costs.estimate`. "sent MiB" was counted by its port in a step: gradients, the updated weights that
ZeRO 1 gathers, norms, headers. On GPUs each process has one, NCCL is used, and links are neither limited nor counted.

`--rough` compares links of 100 Mbit/s with and without delay and loss; there a program carries the packets, and takes
its time from the same cores.

This shows bytes and their cost on a link of known rate. It cannot show how computation scales, because processes share
cores, caches and memory: the title says how many cores there were, and rows of more processes than cores compare only
with each other.
"""

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch

from benchmarks.commands import BIN, result_of
from benchmarks.link import Link, Switch, can_relay, limit, plug_in, sent_bytes
from benchmarks.relay import TUN
from benchmarks.report import ratios, report, spread, times_in_turn
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.runtime.processes import Processes, leave, start_processes

VOCABULARY = 4096
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")  # it decides what lost packets cost
SIDES = {"tensorized": (), "dense": ("model.format=dense",)}
LINKS = {"unlimited": Link(), "1 Gbit/s": Link(1000), "100 Mbit/s": Link(100)}
# Chosen: the delay is that between two cities; such a share of lost packets is called bad.
ROUGH_LINKS = {
    "100 Mbit/s, 5 ms": Link(100, delay_ms=5),
    "100 Mbit/s, 5 ms, 0.1 % lost": Link(100, delay_ms=5, loss=1e-3),
    "100 Mbit/s, 5 ms, 1 % lost": Link(100, delay_ms=5, loss=1e-2),
}
ALONE, UNSHAPED = "none", "not limited, not counted"


@dataclass(frozen=True)
class Case:
    """A model and the tokens per step and process. Overrides change benchmarks/tensor_train.yaml."""

    tokens: int
    overrides: tuple[str, ...] = ()

    def config(self, side: str, processes: int) -> Config:
        batch = f"train.batch_tokens={self.tokens * processes}"
        return read_config("benchmarks/tensor_train.yaml", [*self.overrides, *SIDES[side], batch])


WIDE = (
    *("model.d_model=512", "model.heads=8", "model.d_ff=1408"),
    *("tensor.rank=32", "tensor.outer_rank=32", "tensor.embedding_rank=32", "tensor.layers=[]"),
)
# Four layers each, a vocabulary of 4096 that is tensorized on one side unless the name says otherwise.
CASES = {
    "d=256, rank 64": Case(1024),
    "d=512, rank 32": Case(512, WIDE),
    "d=512, vocabulary dense": Case(512, (*WIDE, "model.format.embedding=dense", "model.format.head=dense")),
}
TINY = (
    *("model.d_model=64", "model.layers=1", "model.d_ff=128", "data.seq_len=32"),
    *("tensor.rank=8", "tensor.outer_rank=8", "tensor.embedding_rank=8", "tensor.layers=[]"),
)


@dataclass(frozen=True)
class Size:
    """The cases, numbers of processes and links that are measured."""

    name: str
    cases: dict[str, Case]
    processes: tuple[int, ...]
    links: dict[str, Link]
    warm_up: int
    repeats: int


FULL = Size("scaling", CASES, (1, 2, 4), LINKS, warm_up=2, repeats=5)
FEW_LINKS = {"unlimited": Link(), "100 Mbit/s": Link(100), "20 ms": Link(delay_ms=20)}
SMALL = Size("scaling_quick", {"tiny": Case(32, TINY)}, (1, 2), FEW_LINKS, warm_up=1, repeats=3)
ROUGH = Size(
    "scaling_rough",
    {"d=256, rank 64": CASES["d=256, rank 64"]},
    (1, 2),
    {"100 Mbit/s": LINKS["100 Mbit/s"]} | ROUGH_LINKS,
    warm_up=1,
    repeats=5,
)
SIZES = {size.name: size for size in (FULL, SMALL, ROUGH)}


class Side:
    """One model on all processes, ready to step; notes the bytes that its steps send if `counts_bytes`."""

    def __init__(self, config: Config, processes: Processes, counts_bytes: bool):
        from benchmarks.decoder_side import DecoderSide
        from comera_dist.costs.estimate import estimate

        self.side, self.processes = DecoderSide(config, processes, VOCABULARY), processes
        self.cost = estimate(config, self.side.plan, processes.count, self.side.batch[0].numel())
        self.counts_bytes, self.sent = counts_bytes, []

    def seconds(self) -> float:
        """Seconds of a step on the slowest process; all processes begin it together. Collective."""
        self.processes.barrier()
        sent = sent_bytes() if self.counts_bytes else 0
        start = time.perf_counter()
        self.side.step()
        if self.processes.device.type == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        if self.counts_bytes:
            self.sent.append(sent_bytes() - sent)
        return self.processes.max(elapsed)

    def figures(self, times: list[float]) -> dict:
        """Figures of the latest steps, which took `times`; bytes sent are their mean over processes. Collective."""
        sent = self.processes.sum(self.sent[-len(times) :])
        return {
            "parameters": self.cost.params,
            "gradient_bytes": self.cost.gradient_bytes_per_step,
            "sent_bytes": statistics.mean(sent) / self.processes.count if sent else None,
            "tokens": self.side.tokens,
            "seconds": times,
        }


def measure(size: Size, case: str, links: list[str], switch: int | None) -> None:
    """Runs in each process: the first prints the figures of all links and sides as JSON."""
    torch.set_num_threads(1)
    if switch is not None:
        plug_in(switch, int(os.environ["RANK"]), size.links.get(links[0], Link()))
    processes = start_processes(timeout_seconds=300)  # chosen: a partner that died is noticed after five minutes
    configs = {name: size.cases[case].config(name, processes.count) for name in SIDES}
    sides = {name: Side(config, processes, switch is not None) for name, config in configs.items()}
    calls = {name: side.seconds for name, side in sides.items()}
    figures = {}
    for link in links:
        if switch is not None:
            limit(size.links.get(link, Link()).megabits)
        times = times_in_turn(calls, size.warm_up, size.repeats)
        figures[link] = {name: side.figures(times[name]) for name, side in sides.items()}
    processes.say(json.dumps(figures))
    leave(processes, 0)


def launch(count: int, task: dict, limits_links: bool) -> dict:
    """Figures by link and side from `count` processes."""
    with Switch() if limits_links else nullcontext() as switch:
        task = task | {"switch": switch.pid if switch else None}
        command = [BIN / "torchrun", "--standalone", "--nproc_per_node", str(count), "--no_python"]
        command += [*(switch.command if switch else []), sys.executable, __file__, "--measure", json.dumps(task)]
        return json.loads(result_of(command))


def compare(size: Size, case: str, limits_links: bool, counts: list[int]) -> list[dict]:
    rows, alone = [], {}
    for count in counts:
        tasks = [{"size": size.name, "case": case, "links": links} for links in launches(size, count, limits_links)]
        for link, sides in chain.from_iterable(launch(count, task, limits_links).items() for task in tasks):
            speedups = ratios(sides["dense"]["seconds"], sides["tensorized"]["seconds"])
            for name, figures in sides.items():
                speed = figures["tokens"] / statistics.median(figures["seconds"])
                alone.setdefault(name, speed)
                rows.append(
                    {
                        "case": case,
                        "side": name,
                        "processes": count,
                        "link": link,
                        "parameters": figures["parameters"],
                        "gradient MiB": mebibytes(figures["gradient_bytes"]),
                        "sent MiB": mebibytes(figures["sent_bytes"]),
                        "step ms": spread([1000 * t for t in figures["seconds"]]),
                        "tokens/s": round(speed),
                        "efficiency": f"{speed / (count * alone[name]):.2f}",
                        "times as fast": spread(speedups, 2) if name == "tensorized" else "1",
                    }
                )
    return rows


def launches(size: Size, count: int, limits_links: bool) -> list[list[str]]:
    """The links that each start of the processes measures; a relayed one needs processes that are plugged in by it."""
    if count == 1:
        return [[ALONE]]
    if not limits_links:
        return [[UNSHAPED]]
    switched = [name for name, link in size.links.items() if not link.is_relayed]
    return [switched, *([name] for name, link in size.links.items() if link.is_relayed and can_relay())]


def mebibytes(count: float | None) -> float | None:
    return None if count is None else round(count / 2**20, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model on 1 and 2 processes, few links")
    parser.add_argument("--rough", action="store_true", help="links with delay and loss, 1 and 2 processes")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(SIZES[arguments.measure.pop("size")], **arguments.measure)
        return
    size = SMALL if arguments.quick else ROUGH if arguments.rough else FULL
    if arguments.rough and not can_relay():
        sys.exit(f"{TUN} cannot be opened, so packets cannot be delayed or lost; start this as root, with that device")
    gpus = torch.cuda.device_count()
    where = "one GPU a process" if gpus else f"one thread a process on {len(os.sched_getaffinity(0))} cores"
    counts = [count for count in size.processes if not gpus or count <= gpus]
    if len(counts) < len(size.processes):
        where += f", {gpus} of them here"
    limits_links = not gpus
    if limits_links:
        try:
            with Switch():
                pass
        except OSError as error:
            limits_links, where = False, where + f", links cannot be limited here ({error})"
    if limits_links and any(link.is_relayed for link in size.links.values()):
        where += f", TCP's congestion control is {CONGESTION_CONTROL.read_text().strip()}"
    rows = [row for case in size.cases for row in compare(size, case, limits_links, counts)]
    report(
        f"{size.name}_cuda" if gpus else size.name,
        rows,
        f"weak scaling, {where}, fp32, ZeRO 1, median and range of {size.repeats}, sides in turn",
    )


if __name__ == "__main__":
    main()
