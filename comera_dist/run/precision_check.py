"""The fastest precision of a configuration on this machine, measured with its own model and data."""

import time
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from comera_dist.config.tree import Config
from comera_dist.data.tasks import open_task
from comera_dist.doctor.finding import Finding
from comera_dist.ops.fp8 import has_fp8_products
from comera_dist.run.feed import Feed
from comera_dist.run.run_model import ModelSource
from comera_dist.run.teacher import open_teacher
from comera_dist.runtime.forward import AutocastModel
from comera_dist.runtime.memory import lack_of_memory_named
from comera_dist.runtime.processes import Processes

TURNS = 5  # passes in each precision, after one that is not counted


def precision_check(config: Config, processes: Processes) -> Finding:
    """The fastest precision for the model of `config`, with random weights, and the one that it sets. Collective.

    Passes have the forward pass of a teacher, too. Raises ComeraError if the data, the model or its teacher cannot be
    opened, or memory runs out.
    """
    task, source = open_task(config), ModelSource(config, processes)
    source.teacher = open_teacher(config, task, None, processes)
    model = source.build(source.plan(task), torch.Generator().manual_seed(config.run.seed))
    feed = Feed(config, task, processes)
    batch = feed.step(0, 0)[0]
    feed.close()
    with lack_of_memory_named():
        seconds = pass_seconds(model.to(processes.device), batch, processes.device)
    return Finding("precision", fastest(seconds, config.train.precision))


def pass_seconds(model: nn.Module, batch: NamedTuple, device: torch.device) -> dict[str, float]:
    """Median seconds of a forward and a backward pass over `batch`, by precision; the precisions take turns.

    fp8 is tried only on a device that has its products; elsewhere it is emulated.
    """
    tensors = [tensor.to(device) for tensor in batch]
    tried = ("fp32", "bf16", "fp8") if has_fp8_products(device) else ("fp32", "bf16")
    models = {precision: AutocastModel(model, precision).train() for precision in tried}
    seconds: dict[str, list[float]] = {precision: [] for precision in tried}
    for _ in range(TURNS + 1):
        for precision, own in models.items():
            _wait_for(device)
            started = time.perf_counter()
            own(*tensors).backward()
            _wait_for(device)
            seconds[precision].append(time.perf_counter() - started)
    return {precision: median(turns[1:]) for precision, turns in seconds.items()}


def fastest(seconds: dict[str, float], configured: str) -> str:
    """Says which precision is the fastest, how many times as long the others take, and which one is configured."""
    best = min(seconds, key=lambda precision: seconds[precision])
    others = [f"{name} takes {seconds[name] / seconds[best]:.2f} times as long" for name in seconds if name != best]
    return f"{best} is fastest, {', '.join(others)}; train.precision = {configured}"


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
