"""CUDA graphs and torch.compile: where they can be used, and how a function is captured.

A function that can be captured takes nothing and returns nothing; it reads and writes tensors whose addresses stay.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from comera_dist.config.tree import Config
from comera_dist.runtime.processes import Processes

WARM_UPS = 3  # as torch's notes on CUDA graphs ask for: libraries are set up and kernels chosen before the capture
# DeepSpeed's measurements of a forward pass that it calls itself.
MEASURES = {"flops_profiler", "wall_clock_breakdown"}

# Makes the replay of a function with memory from a pool of CUDA graphs (None elsewhere).
Capture = Callable[[Callable[[], None], Any], Callable[[], None]]


@dataclass(frozen=True)
class Compilation:
    """How functions of the step are captured and how the model is compiled.

    `capture` None: CUDA graphs on a GPU, nothing elsewhere. Another one captures on every device. `backend` is that of
    torch.compile.
    """

    capture: Capture | None = None
    backend: str | Callable = "inductor"


DEFAULT = Compilation()


def usable(
    config: Config,
    processes: Processes,
    compilation: Compilation = DEFAULT,
    has_own_optimizer: bool = False,
) -> bool:
    """Whether the step is to be captured; where it cannot be, the run says why, once."""
    if not config.train.cuda_graphs:
        return False
    captures = processes.device.type == "cuda" or compilation.capture is not None
    reason = obstacle(config, captures, has_own_optimizer)
    if reason is not None:
        _say_once(processes, config.run_directory, f"train.cuda_graphs = true has no effect: {reason}.")
    return reason is None


def obstacle(config: Config, device_captures: bool, has_own_optimizer: bool = False) -> str | None:
    """Why the step cannot be captured; None where it can be."""
    stage, block = config.train.zero_stage, config.deepspeed.model_dump()
    # At stage 0 DeepSpeed neither reduces gradients nor updates: what its block says of that would be ignored.
    kept = [key for key in block if key in MEASURES or (stage == 0 and key != "zero_optimization")]
    if not device_captures:
        return "the run has no CUDA device; start it on one"
    if stage == 3:
        return "ZeRO stage 3 moves parameters during the step; choose another train.zero_stage"
    if stage == 0 and has_own_optimizer:
        return "only the update of the configured AdamW is captured; choose another train.zero_stage"
    if kept:
        return f"deepspeed.{kept[0]} works only in steps that DeepSpeed makes itself; remove that key"
    return None


def compile_model(model: nn.Module, config: Config, processes: Processes, backend: str | Callable = "inductor") -> None:
    """Has torch compile the model's forward at its first call, except where ZeRO stage 3 gathers its parameters."""
    if config.train.zero_stage == 3:
        reason = "ZeRO stage 3 gathers parameters in hooks, which do not compile; choose another train.zero_stage"
        _say_once(processes, config.run_directory, f"train.compile = true has no effect: {reason}.")
        return
    # Compiled code of earlier engines counts towards the limit after which torch runs new shapes uncompiled.
    torch.compiler.reset()
    for plan in _plans():
        torch.compiler.assume_constant_result(plan)
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    model.compile(backend=backend, dynamic=False)


def captured(
    function: Callable[[], None],
    device: torch.device,
    changed: list[Tensor],
    pool: Any,
    capture: Capture | None = None,
) -> Callable[[], None]:
    """`function` as the replay that `capture` makes: by default of a CUDA graph, on other devices `function` itself.

    It is run a few times for that. The tensors in `changed`, which must be all that it writes, and the state of random
    numbers are put back afterwards.
    """
    on_gpu = device.type == "cuda"
    before = [tensor.detach().clone() for tensor in changed]
    with torch.random.fork_rng([device] if on_gpu else []):
        with _side_stream() if on_gpu else nullcontext():
            for _ in range(WARM_UPS):
                function()
        replay = (capture or (_cuda_graph if on_gpu else as_it_is))(function, pool)
    for tensor, value in zip(changed, before, strict=True):
        tensor.detach().copy_(value)
    return replay


@contextmanager
def _side_stream() -> Iterator[None]:
    """What the default stream is given, later captures would wait for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def as_it_is(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    """A capture of nothing: the function itself."""
    return function


def _cuda_graph(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as NCCL's watchdog, may ask the device what a capturing thread must not ask.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph.replay


def _plans() -> Iterator[Callable]:
    """What tensor/ caches, without the cache: plans from shapes alone.

    Dynamo looks behind caches, and a search for the cheapest order in the midst of the model would cut it in pieces.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("comera_dist.formats."):
            yield from (thing.__wrapped__ for thing in vars(module).values() if hasattr(thing, "cache_parameters"))


@cache
def _say_once(processes: Processes, run: Path, text: str) -> None:
    """An engine is built many times in a run whose ranks change."""
    processes.say(text)
