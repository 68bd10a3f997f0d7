"""The training step on tensors whose addresses stay, so that a GPU can replay it as CUDA graphs.

On a device without graphs the same functions run as they are. Shapes: G numbers of all parameters.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.errors import TrainingError
from comera_dist.ops.cross_entropy import without_waiting
from comera_dist.optim.build import open_state
from comera_dist.optim.combined import gate_adamw
from comera_dist.runtime.deepspeed_engine import DeepSpeedEngine, Note, clip, idle_optimizer, zero_update
from comera_dist.runtime.graphs import Capture, captured
from comera_dist.runtime.processes import Processes


@dataclass(eq=False)
class StaticStep(ABC):
    """Gradients of one optimizer step in one flat buffer; subclasses update the parameters.

    The forward and backward pass of a micro batch is captured at the first step. TrainingError if a batch or a
    parameter later has another shape or dtype.
    """

    module: nn.Module
    accumulation: int
    processes: Processes
    capture: Capture | None  # None: as CUDA graphs on a GPU only

    def __post_init__(self) -> None:
        self._named = dict(self.module.named_parameters())
        self._parameters = list(self._named.values())
        sizes, device = [p.numel() for p in self._parameters], self.processes.device
        self._flat_G = torch.zeros(sum(sizes), device=device)
        parts = torch.split(self._flat_G, sizes)
        self._gradients = [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]
        self._scale, self._total = torch.ones((), device=device), torch.zeros((), device=device)
        # Graphs that are always replayed in the same order can share their memory.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._inputs: list[Tensor] = []
        self._replay: Callable[[], None] | None = None

    def gradients(self, batches: list[NamedTuple], scale: float) -> Tensor:
        """This process's summed loss (0-dimensional). Leaves the gradients of loss · scale / accumulation."""
        if self._replay is None or self._has_moved():
            self._inputs = [tensor.to(self.processes.device, copy=True) for tensor in batches[0]]
            self._replay = self._captured(self._micro_step, [self._flat_G, self._total])
            self._places = [(p.data_ptr(), p.shape, p.dtype) for p in self._parameters]
        self._scale.fill_(scale)
        self._flat_G.zero_()
        self._total.zero_()
        for batch in batches:
            self._fill(batch)
            self._replay()
        return self._total

    @abstractmethod
    def update(self, note: Note | None = None) -> float:
        """Clips, updates the parameters and returns the gradient norm before clipping. Collective.

        If the norm is not finite, the parameters stay as they were.
        """

    @abstractmethod
    def discard(self) -> float:
        """Like `update`, but the parameters and the optimizer's state stay as they were. Collective."""

    def _captured(self, function: Callable[[], None], changed: list[Tensor]) -> Callable[[], None]:
        return captured(function, self.processes.device, changed, self._pool, self.capture)

    def _micro_step(self) -> None:
        """The captured function: the operations of DeepSpeed's engine in the same order."""
        self.module.train()
        with without_waiting():
            # Neither this nor autograd.grad runs DeepSpeed's hooks, which count calls and point p.grad elsewhere.
            loss = self.module.forward(*self._inputs)
        scaled = loss * self._scale / self.accumulation
        found = torch.autograd.grad(scaled, self._parameters, materialize_grads=True)
        torch._foreach_add_(self._gradients, found)
        self._total.add_(loss.detach())

    def _fill(self, batch: NamedTuple) -> None:
        for name, tensor, given in zip(batch._fields, self._inputs, batch, strict=True):
            if given.shape != tensor.shape or given.dtype != tensor.dtype:
                raise TrainingError(
                    f"{name} is {tuple(given.shape)} {given.dtype} and the captured step takes {tuple(tensor.shape)} "
                    f"{tensor.dtype}; give every step batches of one kind, or set train.cuda_graphs=false"
                )
            tensor.copy_(given, non_blocking=True)

    def _has_moved(self) -> bool:
        """Whether parameters have moved in memory since the capture; `_moved` is called for each of them."""
        moved = False
        for (name, p), (address, shape, dtype) in zip(self._named.items(), self._places, strict=True):
            if (p.shape, p.dtype) != (shape, dtype):
                raise TrainingError(
                    f"{name} is {tuple(p.shape)} {p.dtype} and was {tuple(shape)} {dtype} when the step was captured; "
                    f"build a new engine around the changed model"
                )
            if p.data_ptr() != address:
                self._moved(name)
                moved = True
        return moved

    @abstractmethod
    def _moved(self, name: str) -> None:
        """Says that a parameter has moved in memory, or raises TrainingError if the step cannot be captured again."""


@dataclass(eq=False)
class ZeroStep(StaticStep):
    """Hands the gradients to DeepSpeed at ZeRO stages 1 and 2: one reduction a step, then DeepSpeed's update."""

    engine: DeepSpeedEngine

    def update(self, note: Note | None = None) -> float:
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            # A new alias at every step: DeepSpeed points p.grad at its reduction bucket and sets it to None.
            parameter.grad = gradient.detach()
        self.engine.set_gradient_accumulation_boundary(True)  # DeepSpeed's hooks have counted no micro batch
        with self.engine.coalesce_grad_reduction():
            pass  # the reduction is made on exit
        return zero_update(self.engine, note)

    def discard(self) -> float:
        with idle_optimizer(self.engine):
            return self.update()

    def _moved(self, name: str) -> NoReturn:
        raise TrainingError(
            f"{name} has moved in memory since the step was captured, expected it where DeepSpeed updates it; write to "
            f"it in place, or build a new engine, which captures again"
        )


@dataclass(eq=False)
class WholeStep(StaticStep):
    """Stage 0 without DeepSpeed: one reduction of the flat buffer, then clipping and the update, which are captured.

    A parameter or a tensor of the optimizer's state may move in memory: the step is captured again, and says so.
    """

    optimizer: Optimizer
    grad_clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._norm = torch.zeros((), device=self.processes.device)
        self._replay_clip: Callable[[], None] | None = None
        self._replay_update: Callable[[], None] | None = None
        self._state_places: list[int] = []

    def gradients(self, batches: list[NamedTuple], scale: float) -> Tensor:
        """Like StaticStep.gradients, but also averaged over processes. Collective."""
        total = super().gradients(batches, scale)
        if self.processes.count > 1:
            # Not captured: it is one call, and a process that captures again must not wait for the others.
            dist.all_reduce(self._flat_G)
            self._flat_G.mul_(1 / self.processes.count)
        return total

    def update(self, note: Note | None = None) -> float:
        norm = self._clip()
        rates = [group["lr"] for group in self.optimizer.param_groups if isinstance(group["lr"], Tensor)]
        # The tensors that the update reads besides parameters and gradients.
        presses = gate_adamw(self.optimizer)
        state = [*open_state(self.optimizer), *rates, *(presses.pressing if presses else [])]
        places = [tensor.data_ptr() for tensor in state]
        if self._replay_update is not None and places != self._state_places:
            self.processes.say("The optimizer's state has moved in memory; the update is captured again.")
            self._replay_update = None
        if self._replay_update is None:
            self._replay_update = self._captured(self._update, [*self._parameters, *state])
            self._state_places = places
        if math.isfinite(norm):
            if note is not None:
                note(self._parameters)
            self._replay_update()
        return norm

    def discard(self) -> float:
        return self._clip()

    def _clip(self) -> float:
        """Scales the gradients down, and returns their norm before."""
        if self._replay_clip is None:
            self._replay_clip = self._captured(self._point_and_clip, [self._flat_G, self._norm])
        self._replay_clip()
        return float(self._norm)

    def _update(self) -> None:
        self.optimizer.step()

    def _point_and_clip(self) -> None:
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        self._norm.copy_(clip(self._parameters, self.grad_clip))

    def _moved(self, name: str) -> None:
        self.processes.say(f"{name} has moved in memory; the step is captured again.")
        self._replay_update = None
