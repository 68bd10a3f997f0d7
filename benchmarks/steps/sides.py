"""Sides that are ready to step: through the trainer's engine, or in a plain loop of torch with the same work."""

from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.rivals.comera_scheme import compressed_size, rank_penalty
from benchmarks.steps.cases import SCHEME, Case, Side
from benchmarks.steps.models import Batch, batch_of, build
from comera_dist.optim.build import build_optimizer
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.forward import AutocastModel
from comera_dist.runtime.processes import Processes

LR = 1e-3
PENALTY = 1e-2  # weight of the rank penalty; its value changes no cost


class EngineSide:
    """A step is the trainer's: forward, backward, clipping, and the optimizer of the side."""

    def __init__(self, case: Case, side: Side, processes: Processes):
        config = case.config(side, processes.device.type)
        self.model = build(case, side.model, config, processes.device)
        self.engine = Engine(self.model, config, processes)
        self.batch = batch_of(case, config.global_batch)

    @property
    def optimizer(self) -> Optimizer:
        # The engine offers no other way to count the bytes that its optimizer keeps.
        return self.engine._optimizer

    def step(self, batch: Batch | None = None) -> float:
        """Mean loss of a step on `batch`, by default the case's."""
        return self.engine.step([batch or self.batch], LR).loss

    def close(self) -> None:
        self.engine.close()


class PlainSide:
    """The same step without DeepSpeed, for the rivals.

    CoMERA's scheme adds the penalty on rank vectors to the loss, and every step computes the compressed size that its
    late objective compares with the target, layer by layer as published. GaLore is AdamW in projections of fixed rank.
    """

    def __init__(self, case: Case, side: Side, processes: Processes):
        config, self.device = case.config(side, processes.device.type), processes.device
        self.model = build(case, side.model, config, self.device)
        self.module = AutocastModel(self.model, config.train.precision)
        self.has_penalty, self.grad_clip = side.model == SCHEME, config.train.grad_clip
        self.optimizer = build_optimizer(self.model, config.optim)
        if side.uses_galore:
            give_projections(self.optimizer)
        self.batch = batch_of(case, config.global_batch)

    def step(self, batch: Batch | None = None) -> float:
        """Mean loss of a step on `batch`, by default the case's; without the penalty."""
        *inputs, targets = (tensor.to(self.device) for tensor in batch or self.batch)
        self.optimizer.zero_grad()
        loss = self.module(*inputs, targets) / targets.numel()
        (loss + self._penalty() if self.has_penalty else loss).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimizer.step()
        # The engine reports both too, and a GPU is waited for each time.
        float(norm)
        return float(loss.detach())

    def close(self) -> None:
        del self.model, self.module, self.optimizer

    def _penalty(self) -> Tensor:
        compressed_size(self.model)
        return PENALTY * rank_penalty(self.model)


def open_side(case: Case, side: Side, processes: Processes) -> EngineSide | PlainSide:
    """Raises ConfigError if a rival's package is not installed."""
    kind = PlainSide if side.uses_galore or side.model == SCHEME else EngineSide
    return kind(case, side, processes)


def give_projections(optimizer: Optimizer) -> None:
    """Starts GaLore with random orthonormal projections instead of the singular vectors of its first gradients.

    A step costs the same with them. GaLore repeats the decompositions every 200 steps; leaving them out of the
    measurement favours it.
    """
    for group in optimizer.param_groups:
        for weight in group["params"] if "rank" in group else ():
            # GaLore decomposes anew at steps that are multiples of the gap; step 1 is not one.
            optimizer.state[weight] = group["method"].blank(weight, step=1)
            nn.init.orthogonal_(optimizer.state[weight]["projector"].ortho_matrix)
