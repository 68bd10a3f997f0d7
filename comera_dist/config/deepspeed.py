"""Keys that are passed through to DeepSpeed because a test has tried them, and why others are refused.

tests/distributed/test_deepspeed_keys.py trains with each key of `zero_optimization` at each of its stages and compares
weights, moments and a resumed run with a run without the key.
"""

import difflib
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from comera_dist.config.fields import MOST, NonNegative, NonNegativeFloat, Number, Positive, Section


class _Given(Section):
    """A section that is written without the keys that nobody set: DeepSpeed fills them in."""

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class ZeroOptimization(_Given):
    """Keys of ZeRO, by the names of DeepSpeed's documentation; null leaves DeepSpeed's default.

    A key without effect at `train.zero_stage` is refused.
    """

    reduce_bucket_size: Positive | None = None
    """Numbers that are reduced at once; null takes all numbers of the model."""
    contiguous_gradients: bool | None = None
    """Whether gradients are copied into one buffer as they are computed, which avoids fragmented memory."""
    overlap_comm: bool | None = None
    """Whether gradients are reduced while the backward pass goes on."""
    reduce_scatter: bool | None = None
    """Whether gradients are averaged by reduce-scatter instead of all-reduce."""
    allgather_partitions: bool | None = None
    """Whether updated parameters are collected by all-gather instead of a series of broadcasts."""
    allgather_bucket_size: Positive | None = None
    """Numbers that are gathered at once."""
    use_multi_rank_bucket_allreduce: bool | None = None
    """Whether buckets that belong to several processes are reduced in one all-reduce."""
    ignore_unused_parameters: bool | None = None
    """Whether a forward pass may leave parameters unused."""
    sub_group_size: Positive | None = None
    """Numbers that the optimizer steps at once."""
    stage3_prefetch_bucket_size: NonNegative | None = None
    """Numbers of parameters that are gathered before they are used."""
    stage3_param_persistence_threshold: NonNegative | None = None
    """Numbers of a parameter below which it stays whole on every process."""
    stage3_model_persistence_threshold: NonNegative | None = None
    """Largest count of numbers that stay whole on every process, over the whole model."""
    stage3_max_live_parameters: NonNegative | None = None
    """Largest count of numbers of parameters that are whole at the same time."""
    stage3_max_reuse_distance: NonNegative | None = None
    """Numbers between two uses of a parameter up to which it stays whole."""
    stage3_use_all_reduce_for_fetch_params: bool | None = None
    """Whether parameters are gathered by all-reduce instead of all-gather."""
    stage3_allgather_sequential: bool | None = None
    """Whether parameters are gathered one after the other."""
    memory_efficient_linear: bool | None = None
    """Whether linear layers are DeepSpeed's own, which keep less memory for the backward pass."""


_AT_ALL = ("reduce_bucket_size", "contiguous_gradients", "overlap_comm", "reduce_scatter")
_AT_1_AND_2 = (
    "allgather_partitions",
    "allgather_bucket_size",
    "use_multi_rank_bucket_allreduce",
    "ignore_unused_parameters",
)
# ZeRO stages at which a key has an effect.
STAGES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(ZeroOptimization.model_fields, (3,)),
    **dict.fromkeys(_AT_ALL, (1, 2, 3)),
    **dict.fromkeys(_AT_1_AND_2, (1, 2)),
}


class FlopsProfiler(_Given):
    """DeepSpeed's profiler, which prints a count of FLOPs at one step; null leaves DeepSpeed's default."""

    enabled: bool | None = None
    """Whether the profiler is on."""
    profile_step: Positive | None = None
    """Number of the step that is profiled."""
    module_depth: Annotated[int, Number, Field(ge=-1, le=MOST)] | None = None
    """Depth of the modules that are printed; -1 prints the innermost ones."""
    top_modules: Positive | None = None
    """Modules that the summary lists."""
    detailed: bool | None = None
    """Whether every module is printed, not only the summary."""
    recompute_fwd_factor: NonNegativeFloat | None = None
    """Forward passes that recomputed activations add, as a multiple of one forward pass."""


class CommsLogger(_Given):
    """DeepSpeed's logger of collective operations; null leaves DeepSpeed's default."""

    enabled: bool | None = None
    """Whether the logger is on."""
    verbose: bool | None = None
    """Whether every operation is printed as it runs."""
    prof_all: bool | None = None
    """Whether all operations are logged."""
    prof_ops: tuple[str, ...] | None = None
    """Names of the operations that are logged if `prof_all` is false."""
    debug: bool | None = None
    """Whether the name of the calling function is added to each operation."""


class DeepSpeed(_Given):
    """Keys of DeepSpeed's configuration; null leaves DeepSpeed's default.

    A key that is not listed is refused, because nobody has tried it with this trainer.
    """

    zero_optimization: ZeroOptimization = ZeroOptimization()
    communication_data_type: Literal["fp32", "bf16"] | None = None
    """Data type in which gradients are averaged; fp16 is refused, because small gradients would become 0."""
    comms_logger: CommsLogger | None = None
    flops_profiler: FlopsProfiler | None = None
    wall_clock_breakdown: bool | None = None
    """Whether the times of the forward pass, the backward pass and the update are printed."""
    memory_breakdown: bool | None = None
    """Whether the memory before and after parts of a step is printed."""
    dump_state: bool | None = None
    """Whether DeepSpeed's state is printed after its start."""
    steps_per_print: Positive | None = None
    """Steps between two lines of DeepSpeed's own log."""


# Keys of DeepSpeed that a user may know, and why they are refused.
_REFUSED = {
    "prescale_gradients gradient_predivide_factor": "is for gradients in fp16, and these are in fp32",
    "tensorboard csv_monitor comet": "logs only the learning rate, which metrics.jsonl and wandb have",
    "round_robin_gradients parameter_alignment": (
        "lays weights and moments out in another order than checkpoints read them"
    ),
    "offload_optimizer offload_param cpu_offload cpu_offload_param cpu_offload_use_pin_memory zenflow": (
        "needs an optimizer of DeepSpeed's own, and this trainer has another"
    ),
    "zero_quantized_weights zero_quantized_gradients zero_quantized_nontrainable_weights": (
        "rounds what processes exchange, and nobody has measured what that does to a tensor train"
    ),
    "compute_grad_norm": "leaves out the gradient norm, which every step reports",
    "stage3_module_granularity_threshold": "gathers several layers as one, which fails with tensor trains",
    "zero_hpz_partition_size": "needs several nodes, where nobody has tried it",
}
# Keys of DeepSpeed, and the key of the configuration that decides them.
_DECIDED_BY = {
    "train_batch_size": "train.batch_tokens",
    "train_micro_batch_size_per_gpu gradient_accumulation_steps": "train.micro_batch",
    "gradient_clipping": "train.grad_clip",
    "bf16 fp16 torch_autocast": "train.precision",
    "optimizer": "optim",
    "scheduler": "schedule",
    "checkpoint": "checkpoint",
    "wandb": "wandb",
    "stage": "train.zero_stage",
}


def why_refused(key: str, known: list[str]) -> str:
    """The sentence about an unknown key of `deepspeed`; `known` are the possible keys of its section."""
    place, _, leaf = f"deepspeed.{key}".rpartition(".")
    for keys, ours in _DECIDED_BY.items():
        if leaf in keys.split():
            return f"deepspeed.{key} is decided by {ours}; set that and remove this key"
    for keys, reason in _REFUSED.items():
        if leaf in keys.split():
            return f"deepspeed.{key} {reason}; remove this key"
    near = difflib.get_close_matches(leaf, known, n=1)
    hint = f"did you mean {place}.{near[0]}?" if near else f"use one of {', '.join(sorted(known))}"
    return f"deepspeed.{key} is not a key that can be passed through; {hint}"


def idle_keys(block: DeepSpeed, stage: int) -> list[str]:
    """One sentence for each given key that has no effect, or another one than it says."""
    problems = [
        f"deepspeed.zero_optimization.{key} has no effect at train.zero_stage = {stage}; set another of "
        f"{', '.join(map(str, STAGES[key]))} or remove this key"
        for key in block.zero_optimization.model_dump()
        if stage not in STAGES[key]
    ]
    logger, profiler = block.comms_logger, block.flops_profiler
    if logger is not None and logger.enabled is False:
        problems.append(
            "deepspeed.comms_logger.enabled = false would turn DeepSpeed's logger on, which looks for the section, not "
            "for its value; remove the section"
        )
    if logger is not None and logger.prof_ops is not None and logger.prof_all is not False:
        problems.append(
            "deepspeed.comms_logger.prof_ops has no effect while all operations are logged; set "
            "deepspeed.comms_logger.prof_all=false too, or remove it"
        )
    if profiler is not None and not profiler.enabled and (given := profiler.model_dump(exclude={"enabled"})):
        problems.append(
            f"deepspeed.flops_profiler.{next(iter(given))} has no effect while the profiler is off; set "
            f"deepspeed.flops_profiler.enabled=true too, or remove it"
        )
    return problems
