"""Predicts the peak memory of a process of a run.

Shapes: P parameters of the model, n processes.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate
from comera_dist.formats.base import FP32
from comera_dist.formats.plan import Plan
from comera_dist.models.family import build_model, kind_of

if TYPE_CHECKING:
    from torch import nn

    from comera_dist.costs.live_memory import StepMemory

# What DeepSpeed 0.19.8 and AdamW hold at an update besides the optimizer's own state: copies of the parameters that
# each process holds whole, and copies that the processes share. docs/design.md has the measurement.
# 0: weights, gradients, and the flat copy that is reduced.
# 1, 2: weights; masters, averaged gradients and their flat copy, two temporary tensors of the update.
# 3: the reduction bucket and gathered weights; masters, pieces of weights and gradients, two temporary tensors.
UPDATE_COPIES = {0: (3, 0), 1: (1, 5), 2: (1, 5), 3: (2, 5)}
# The same during the backward pass, without the gradients that autograd makes. Stage 3 makes its buffers at the start.
BACKWARD_COPIES = {0: (1, 0), 1: (1, 1), 2: (1, 1), 3: (2, 3)}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a process: activations that a micro batch keeps for its backward pass, and the peaks of a step.

    `backward_peak` is that of the forward and backward pass, `update_peak` that of the optimizer's update. These are
    bytes of living tensors: an allocator that keeps freed memory holds more.
    """

    activations: int
    backward_peak: int
    update_peak: int

    @property
    def peak(self) -> int:
        return max(self.backward_peak, self.update_peak)

    def to_json(self) -> dict[str, int]:
        return asdict(self) | {"peak": self.peak}


def estimate_memory(config: Config, plan: Plan, figures: Estimate, num_processes: int) -> MemoryEstimate | None:
    """The memory of a run with this plan and these figures; None if its kind of model has no `blank_batch`.

    A few seconds of work: a step is made with tensors that have no values. Lookups in a tensor-train table count as
    if all tokens were different.
    """
    step = _step_memory(config, plan, num_processes)
    if step is None:
        return None
    stage, params = config.train.zero_stage, FP32 * figures.params
    copies = {0: 2, 1: 2 + 1 / num_processes, 2: 1 + 2 / num_processes, 3: 3 / num_processes}[stage]
    moments = figures.state_bytes_per_process - copies * params

    def held(at: dict[int, tuple[int, int]]) -> int:
        whole, shared = at[stage]
        return round(moments + params * (whole + shared / num_processes))

    return MemoryEstimate(step.kept, held(BACKWARD_COPIES) + step.peak, held(UPDATE_COPIES))


def _step_memory(config: Config, plan: Plan, num_processes: int) -> "StepMemory | None":
    from comera_dist.costs.live_memory import step_memory

    kind, rows = kind_of(config.model), config.micro_batch(num_processes)
    if kind.blank_batch(config, 1) is None:
        return None

    def build() -> "nn.Module":
        model = build_model(config.model, plan, None)
        model.merges_together = config.train.zero_stage < 3  # type: ignore[assignment]  # as the engine sets it
        return model

    return step_memory(
        build,
        lambda: kind.blank_batch(config, rows) or (),
        config.train.precision,
        config.train.activation_checkpointing,
        most_distinct=max((layer.inputs for layer in plan.values() if layer.is_embedding), default=0),
        micro_batches=config.global_batch // (rows * num_processes),
    )
