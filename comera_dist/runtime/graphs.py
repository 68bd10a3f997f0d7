"""CUDA graphs and torch.compile: where they can be used, and how a function is captured.

A function that can be captured takes and returns nothing; it reads and writes tensors whose addresses stay.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from comera_dist.config.tree import Config
from comera_dist.formats.compiled import plans_are_constants
from comera_dist.runtime.idle_keys import say_once
from comera_dist.runtime.processes import Processes

WARM_UPS = 3  # convention of torch's notes on CUDA graphs: libraries start and kernels are chosen before the capture
# Keys of the deepspeed block that work only if DeepSpeed runs the forward pass.
MEASURES = {"flops_profiler", "wall_clock_breakdown"}

# Makes the replay of a function with memory from a pool of CUDA graphs (None on other devices).
Capture = Callable[[Callable[[], None], Any], Callable[[], None]]
Backend = str | Callable[..., Any]  # of torch.compile


@dataclass(frozen=True)
class Compilation:
    """How functions of the step are captured (None: as CUDA graphs on a GPU only) and how the model is compiled."""

    capture: Capture | None = None
    backend: Backend = "inductor"


DEFAULT = Compilation()


def usable(
    config: Config, processes: Processes, compilation: Compilation = DEFAULT, has_own_optimizer: bool = False
) -> bool:
    """Whether the step is to be captured; if it is asked for and cannot be, the run says why, once."""
    if not config.train.cuda_graphs:
        return False
    captures = processes.device.type == "cuda" or compilation.capture is not None
    reason = obstacle(config, captures, has_own_optimizer)
    if reason is not None:
        say_once(processes, config.run_directory, f"train.cuda_graphs = true has no effect: {reason}.")
    return reason is None


def obstacle(config: Config, device_captures: bool, has_own_optimizer: bool = False) -> str | None:
    """Why the step cannot be captured; None if it can be."""
    stage, block = config.train.zero_stage, config.deepspeed.model_dump()
    # At stage 0 a captured step calls DeepSpeed for nothing, so its block would have no effect.
    ignored = [key for key in block if key in MEASURES or (stage == 0 and key != "zero_optimization")]
    if not device_captures:
        return "the run has no CUDA device; start it on one"
    if stage == 3:
        return "ZeRO stage 3 moves parameters during the step; choose another train.zero_stage"
    if stage == 0 and has_own_optimizer:
        return "only the update of the configured optimizer is captured; choose another train.zero_stage"
    if config.train.activation_checkpointing != "none":
        return "recomputation sets the state of random numbers; set train.activation_checkpointing=none"
    if ignored:
        return f"deepspeed.{ignored[0]} works only in steps that DeepSpeed makes itself; remove that key"
    return None


def compile_model(model: nn.Module, config: Config, processes: Processes, backend: Backend = "inductor") -> None:
    """Makes torch compile the model's forward at its first call, except at ZeRO stage 3."""
    if config.train.zero_stage == 3:
        reason = "ZeRO stage 3 gathers parameters in hooks, which do not compile; choose another train.zero_stage"
        say_once(processes, config.run_directory, f"train.compile = true has no effect: {reason}.")
        return
    # Compiled code of earlier engines counts towards the limit after which torch runs new shapes uncompiled.
    torch.compiler.reset()
    plans_are_constants()
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    model.compile(backend=backend, dynamic=False)


def captured(
    function: Callable[[], None], device: torch.device, changed: list[Tensor], pool: Any, capture: Capture | None = None
) -> Callable[[], None]:
    """The replay of `function` that `capture` makes: by default of a CUDA graph, on other devices `function` itself.

    `function` runs a few times to warm up. Afterwards the tensors in `changed`, which must be all that it writes, and
    the state of random numbers are restored. Host memory holds them meanwhile: a second copy of weights and moments
    would need more of the device than any step.
    """
    on_gpu = device.type == "cuda"
    before = [torch.empty_like(tensor, device="cpu").copy_(tensor.detach()) for tensor in changed]
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
    """Runs the block on a side stream: a later capture would wait for any work queued on the default stream."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no annotation
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def as_it_is(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    """A `Capture` that captures nothing: the function itself."""
    return function


def _cuda_graph(function: Callable[[], None], pool: Any) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as NCCL's watchdog, may make calls that are forbidden to a capturing thread.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph.replay
