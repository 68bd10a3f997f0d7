"""Predicts the peak memory of a process of a run.

Shapes: P bytes of the model's parameters, n processes.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate, dealt_numbers
from comera_dist.formats.base import FP32
from comera_dist.formats.plan import Plan
from comera_dist.models.family import build_model, kind_of

if TYPE_CHECKING:
    from torch import nn

    from comera_dist.costs.live_memory import BlankStep

# Defaults of DeepSpeed 0.19.8, in numbers of parameters: gradients that are averaged at once, weights that stage 3
# keeps gathered and those that it fetches at once, and the size below which it leaves a parameter whole.
AVERAGED_AT_ONCE, GATHERED, PREFETCHED, PERSISTENT = 500_000_000, 1_000_000_000, 50_000_000, 100_000


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a process: activations that a micro batch keeps for its backward pass, and the peaks of a step.

    `backward_peak` is that of the forward and backward pass and of averaging the gradients, `update_peak` that of the
    optimizer's update. These are bytes of living tensors: an allocator that keeps freed memory holds more.
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
    rows = config.micro_batch(num_processes)
    micro_batches = config.micro_batches(num_processes)
    if kind_of(config.model).blank_batch(config, 1) is None:
        return None
    step = step_of(config, plan, rows, micro_batches)

    def freeing() -> "BlankStep":
        return step_of(config, plan, rows, micro_batches, frees_gradients=True)

    return memory_of(config, plan, figures, num_processes, step, freeing)


def step_of(config: Config, plan: Plan, rows: int, micro_batches: int, frees_gradients: bool = False) -> "BlankStep":
    """A forward and backward pass of `rows` rows without values; its kind of model must have a `blank_batch`."""
    from comera_dist.costs.live_memory import blank_step

    kind = kind_of(config.model)

    def build() -> "nn.Module":
        model = build_model(config.model, plan, None)
        model.merges_together = config.train.zero_stage < 3  # type: ignore[assignment]  # as the engine sets it
        return model

    return blank_step(
        build,
        lambda: kind.blank_batch(config, rows) or (),
        config.train.precision,
        config.train.activation_checkpointing,
        max((layer.inputs for layer in plan.values() if layer.is_embedding), default=0),
        micro_batches,
        frees_gradients,
    )


def memory_of(
    config: Config,
    plan: Plan,
    figures: Estimate,
    num_processes: int,
    step: "BlankStep",
    freeing: Callable[[], "BlankStep"],
) -> MemoryEstimate:
    """The memory of a process whose forward and backward pass is `step`, or `freeing()` if it frees gradients.

    What DeepSpeed 0.19.8 and AdamW hold besides was counted as bytes of living tensors, on one, two and four processes,
    with buckets of all gradients and of a ninth of them. docs/design.md has the figures.
    """
    stage, n, keys = config.train.zero_stage, num_processes, config.deepspeed.zero_optimization
    buffers = sum(layer.buffer_bytes for layer in plan.values())
    whole = FP32 * figures.params
    piece = whole / n
    bucket = min(whole, FP32 * (keys.reduce_bucket_size or figures.params))
    # At the update two temporary tensors of AdamW's, or where whole parameters are dealt out weights and gradients, as
    # they are sent and as they arrive (see runtime/dealt_parameters.py).
    temporary = max(2 * piece, 4 * FP32 * dealt_numbers(config, plan) / n)
    state = (
        figures.state_bytes_per_process
        - {0: 2 * whole, 1: 2 * whole + piece, 2: whole + 2 * piece, 3: 3 * piece}[stage]
    )  # of the optimizer, without masters
    if stage == 0:  # weights; then gradients and a flat copy of them
        backward = whole + state + step.peak
        update = 2 * whole + state + min(whole, FP32 * AVERAGED_AT_ONCE)
    elif stage < 3:
        # Weights and masters; when gradients are averaged, gradients and the larger of the bucket and this process's
        # piece; at the update the piece of gradients, its flat copy, and the temporary tensors.
        backward = whole + piece + state + max(step.peak, whole + max(bucket, piece))
        update = whole + 3 * piece + temporary + state
        if stage == 2 and bucket < whole:  # gradients are freed as each bucket is averaged
            backward = min(backward, whole + 2 * piece + state + 3 * bucket + freeing().peak)
    else:
        # Pieces of weights, masters and gradients; the bucket, where gradients move; gathered weights, all that are
        # used again soon, and the buffer where they arrive; at the update the temporary tensors and a copied piece.
        given = (keys.stage3_max_live_parameters, keys.stage3_max_reuse_distance)
        live = min(whole, FP32 * max(GATHERED if count is None else count for count in given))
        fetched = PREFETCHED if keys.stage3_prefetch_bucket_size is None else keys.stage3_prefetch_bucket_size
        arriving = min(whole, FP32 * fetched) if n > 1 else 0  # a single process has all pieces
        gathered = bucket + live + arriving + FP32 * persistent_numbers(config, plan)
        backward = 3 * piece + state + gathered + freeing().peak
        update = 4 * piece + temporary + state + bucket
    return MemoryEstimate(step.kept, round(backward) + buffers, round(update) + buffers)


def persistent_numbers(config: Config, plan: Plan) -> int:
    """Numbers of the parameters that stage 3 keeps whole on every process."""
    given = config.deepspeed.zero_optimization.stage3_param_persistence_threshold
    largest = PERSISTENT if given is None else given
    sizes = [prod(shape) for layer in plan.values() for shape in layer.tensors.values()]
    return sum(size for size in sizes if size < largest)
