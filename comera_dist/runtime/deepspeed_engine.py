"""DeepSpeed's engine: its configuration, its training step, its end."""

import contextlib
import importlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.config.tree import Config

logger = logging.getLogger("DeepSpeed")
logger.setLevel(logging.WARNING)
# DeepSpeed recognises optimizers by their exact class and would warn at every engine with a subclass of AdamW.
logger.addFilter(lambda record: "untested optimizer" not in record.getMessage())
import deepspeed  # noqa: E402  (its logger must be quiet before it is imported)

from comera_dist.runtime.zero_state import ZeroOptimizer  # noqa: E402

# Is called with the tensors that the optimizer is about to step, whose gradients are clipped.
Note = Callable[[Iterable[Tensor]], None]


def _import_muon_uncompiled() -> None:
    """Imports DeepSpeed's Muon, which its engines would import, with functions that torch.compile leaves alone.

    No run calls them, and compiling them as they are defined would import torch's inductor: a second of each process.
    """
    compiler = deepspeed.runtime.compiler
    compile, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        compiler.compile = compile


_import_muon_uncompiled()


class DeepSpeedEngine(Protocol):
    """The part of DeepSpeed's engine that is used here; DeepSpeed has no type annotations.

    `step` is called after every micro batch, and updates the parameters if `set_gradient_accumulation_boundary` was
    called with True before it. DeepSpeed would count `accumulation` micro batches itself, but their number may grow.
    """

    device: torch.device
    optimizer: ZeroOptimizer
    train: Callable[[], Any]
    eval: Callable[[], Any]
    backward: Callable[[Tensor], Any]
    step: Callable[[], Any]
    set_gradient_accumulation_boundary: Callable[[bool], Any]  # before a pass: whether it is the step's last one
    get_global_grad_norm: Callable[[], float]  # before clipping
    coalesce_grad_reduction: Callable[[], AbstractContextManager[Any]]  # stages 1 and 2
    destroy: Callable[[], Any]

    def __call__(self, *batch: Tensor) -> Any: ...


def start_deepspeed(
    module: nn.Module, optimizer: Optimizer, config: Config, micro_batch: int, accumulation: int
) -> DeepSpeedEngine:
    """An engine whose passes take `micro_batch` rows and divide the loss by `accumulation`. Collective."""
    # On CPUs DeepSpeed would compile a shared-memory collective that only its inference uses: half a minute, and an
    # error if there is no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine: DeepSpeedEngine
    # With gradients DeepSpeed would keep views of all parameters, and with them autograd nodes of this stream. A CUDA
    # graph that is captured on another stream would wait for this one, which ends the capture.
    with torch.no_grad():
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=optimizer,
            config=_configuration(config, micro_batch, accumulation, sum(p.numel() for p in module.parameters())),
            dist_init_required=False,
        )
    return engine


def _configuration(config: Config, micro_batch: int, accumulation: int, parameters: int) -> dict[str, Any]:
    """The user's `deepspeed` block and the keys that the run decides, for a model of `parameters` numbers."""
    stage, block = config.train.zero_stage, config.deepspeed.model_dump()
    zero = block["zero_optimization"]
    # DeepSpeed allocates the whole bucket at every step, by default 5·10⁸ numbers: no more than there are gradients.
    bucket = min(parameters, zero.get("reduce_bucket_size", parameters))
    return {
        "steps_per_print": 10**9,  # never
        **block,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        # At stage 0 EagerStep clips, because it reports the norm too.
        "gradient_clipping": 0.0 if stage == 0 else config.train.grad_clip,
        "zero_optimization": {**zero, "stage": stage, "reduce_bucket_size": bucket},
        "zero_allow_untested_optimizer": True,
    }


def close_deepspeed(engine: DeepSpeedEngine) -> None:
    """Removes the engine's hooks from the module and frees its memory."""
    # `destroy` leaves these two hooks on the module.
    for name in ("module_forward_pre_hook", "module_forward_post_hook"):
        with contextlib.suppress(AttributeError):
            getattr(engine, name).remove()
    engine.destroy()


@dataclass(eq=False)
class EagerStep:
    """One optimizer step as DeepSpeed makes it, at every ZeRO stage: a backward pass a micro batch, an update."""

    engine: DeepSpeedEngine
    model: nn.Module
    stage: int
    grad_clip: float

    def gradients(self, batches: list[NamedTuple], scale: float) -> Tensor:
        """This process's summed loss (0-dimensional). Leaves the gradients of loss · scale / accumulation, averaged
        over processes. Collective."""
        self.engine.train()
        total = torch.zeros((), device=self.engine.device)
        for index, batch in enumerate(batches):
            self.engine.set_gradient_accumulation_boundary(index == len(batches) - 1)
            # Both must be calls of the engine: at stage 0 gradients would otherwise stay unreduced, without an error.
            loss = self.engine(*(tensor.to(self.engine.device) for tensor in batch))
            self.engine.backward(loss * scale)
            total = total + loss.detach()
            if index < len(batches) - 1:
                self.engine.step()
        return total

    def update(self, note: Note | None = None) -> float:
        """Clips, updates the parameters and returns the gradient norm before clipping. Collective.

        If the norm is not finite, the parameters stay as they were.
        """
        if self.stage > 0:
            return zero_update(self.engine, note)
        norm = float(clip(self.model.parameters(), self.grad_clip))
        with noting(self.engine, note) if math.isfinite(norm) else idle_optimizer(self.engine):
            self.engine.step()
        return norm

    def discard(self) -> float:
        """Like `update`, but the parameters and the optimizer's state stay as they were. Collective."""
        with idle_optimizer(self.engine):
            return self.update()


@contextlib.contextmanager
def idle_optimizer(engine: DeepSpeedEngine) -> Iterator[None]:
    """While entered, the optimizer makes no step: DeepSpeed's step then only clears gradients and counts."""
    with _changed_step(engine, lambda optimizer, step: None):
        yield


@contextlib.contextmanager
def noting(engine: DeepSpeedEngine, note: Note | None) -> Iterator[None]:
    """While entered, `note` is called before each step of the optimizer. DeepSpeed makes one for each part."""

    def step_noted(optimizer: Any, step: Callable[[], Any]) -> Any:
        assert note is not None
        note([tensor for group in optimizer.param_groups for tensor in group["params"]])
        return step()

    with nullcontext() if note is None else _changed_step(engine, step_noted):
        yield


@contextlib.contextmanager
def _changed_step(engine: DeepSpeedEngine, change: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """While entered, a step of the optimizer calls `change` with the optimizer and its true step."""
    optimizer: Any = getattr(engine.optimizer, "optimizer", engine.optimizer)
    step = optimizer.step
    optimizer.step = lambda *arguments, **options: change(optimizer, partial(step, *arguments, **options))
    try:
        yield
    finally:
        optimizer.step = step


def zero_update(engine: DeepSpeedEngine, note: Note | None = None) -> float:
    """DeepSpeed's update at ZeRO stages above 0; returns the gradient norm before clipping.

    DeepSpeed clips by itself, and makes no update if the norm is not finite.
    """
    with noting(engine, note):
        engine.step()
    return float(engine.get_global_grad_norm())


def clip(parameters: Iterable[Tensor], largest_norm: float) -> Tensor:
    """Scales gradients down to a norm of `largest_norm` (0: no limit) and returns their norm before."""
    return nn.utils.clip_grad_norm_(parameters, largest_norm or float("inf"))


def clipping(norm: float, largest_norm: float) -> float:
    """The number by which torch and DeepSpeed divide gradients of this norm to clip them."""
    return max(1.0, (norm + 1e-6) / largest_norm) if largest_norm else 1.0
