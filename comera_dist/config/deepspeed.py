"""What is passed through to DeepSpeed: keys that a test has tried, and why others are refused.

tests/distributed/test_deepspeed_keys.py trains with each key of `zero_optimization` at each of its stages and compares
weights, moments and a resumed run with a run without the key.
"""

import difflib
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from comera_dist.config.fields import MOST, NonNegative, NonNegativeFloat, Number, Positive, Section


class _Given(Section):
    """A section of which only the keys that were given are written: DeepSpeed fills in the others."""

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class ZeroOptimization(_Given):
    """Keys of ZeRO, by the names of DeepSpeed's documentation.

    A key without effect at `train.zero_stage` is refused.
    """

    reduce_bucket_size: Positive | None = None
    """Numbers that are reduced at once; null takes as many as the model has."""
    contiguous_gradients: bool | None = None
    """Copies gradients into one buffer as they are computed, which avoids fragmented memory."""
    overlap_comm: bool | None = None
    """Reduces gradients while the backward pass goes on."""
    reduce_scatter: bool | None = None
    """Averages gradients by reduce-scatter in place of all-reduce."""
    allgather_partitions: bool | None = None
    """Collects updated parameters by all-gather in place of a series of broadcasts."""
    allgather_bucket_size: Positive | None = None
    """Numbers that are gathered at once."""
    use_multi_rank_bucket_allreduce: bool | None = None
    """Reduces buckets that belong to several processes in one all-reduce."""
    ignore_unused_parameters: bool | None = None
    """Accepts parameters that a forward pass does not use."""
    sub_group_size: Positive | None = None
    """Numbers that the optimizer steps at once."""
    stage3_prefetch_bucket_size: NonNegative | None = None
    """Numbers of parameters that are gathered ahead of their use."""
    stage3_param_persistence_threshold: NonNegative | None = None
    """Parameters with fewer numbers stay whole on every process."""
    stage3_model_persistence_threshold: NonNegative | None = None
    """Most numbers that stay whole on every process, over the model."""
    stage3_max_live_parameters: NonNegative | None = None
    """Most numbers of parameters that are whole at the same time."""
    stage3_max_reuse_distance: NonNegative | None = None
    """A parameter that is used again within so many numbers stays whole."""
    stage3_use_all_reduce_for_fetch_params: bool | None = None
    """Gathers parameters by all-reduce in place of all-gather."""
    stage3_allgather_sequential: bool | None = None
    """Gathers parameters one after the other."""
    memory_efficient_linear: bool | None = None
    """Uses DeepSpeed's linear layer, which keeps less memory for the backward pass."""


_ANY, _SPLIT_STATE, _SPLIT_WEIGHTS = (1, 2, 3), (1, 2), (3,)
STAGES: dict[str, tuple[int, ...]] = dict.fromkeys(ZeroOptimization.model_fields, _SPLIT_WEIGHTS) | {
    "reduce_bucket_size": _ANY,
    "contiguous_gradients": _ANY,
    "overlap_comm": _ANY,
    "reduce_scatter": _ANY,
    "allgather_partitions": _SPLIT_STATE,
    "allgather_bucket_size": _SPLIT_STATE,
    "use_multi_rank_bucket_allreduce": _SPLIT_STATE,
    "ignore_unused_parameters": _SPLIT_STATE,
}


class FlopsProfiler(_Given):
    """Prints DeepSpeed's count of FLOPs at one step."""

    enabled: bool | None = None
    """Turns the profiler on."""
    profile_step: Positive | None = None
    """Step that is profiled."""
    module_depth: Annotated[int, Number, Field(ge=-1, le=MOST)] | None = None
    """Depth of the modules that are printed; -1 prints the innermost ones."""
    top_modules: Positive | None = None
    """Modules that the summary lists."""
    detailed: bool | None = None
    """Prints every module, not only the summary."""
    recompute_fwd_factor: NonNegativeFloat | None = None
    """Forward passes that recomputed activations add, as a multiple of one forward pass."""


class CommsLogger(_Given):
    """Prints DeepSpeed's collective operations."""

    enabled: bool | None = None
    """Turns the logger on."""
    verbose: bool | None = None
    """Prints every operation as it runs."""
    prof_all: bool | None = None
    """Logs all operations."""
    prof_ops: tuple[str, ...] | None = None
    """Names of the operations that are logged if `prof_all` is false."""
    debug: bool | None = None
    """Adds the name of the calling function to each operation."""


class DeepSpeed(_Given):
    """Keys of DeepSpeed's configuration; null leaves DeepSpeed's default.

    A key that is not listed is refused, because nobody has tried it with this trainer.
    """

    zero_optimization: ZeroOptimization = ZeroOptimization()
    communication_data_type: Literal["fp32", "bf16"] | None = None
    """Data type in which gradients are averaged; fp16 is not possible, because small ones would be lost."""
    comms_logger: CommsLogger | None = None
    flops_profiler: FlopsProfiler | None = None
    wall_clock_breakdown: bool | None = None
    """Prints the time of the forward pass, the backward pass and the update."""
    memory_breakdown: bool | None = None
    """Prints the memory before and after parts of a step."""
    dump_state: bool | None = None
    """Prints DeepSpeed's state after its start."""
    steps_per_print: Positive | None = None
    """Steps between two lines of DeepSpeed's own log."""


_OFFLOAD = "needs an optimizer of DeepSpeed's own, and this trainer has another"
_LAYOUT = "lays weights and moments out in another order than checkpoints read them"
_LOSSY = "rounds what processes exchange, and nobody has measured what that does to a tensor train"
_FP16 = "is for gradients in fp16, and these are in fp32"
_LOGS = "logs the learning rate alone, which metrics.jsonl and wandb have"
# Keys of DeepSpeed that a user may know: why they are refused.
_REFUSED = {
    ("prescale_gradients",): _FP16,
    ("gradient_predivide_factor",): _FP16,
    ("tensorboard",): _LOGS,
    ("csv_monitor",): _LOGS,
    ("comet",): _LOGS,
    ("zero_optimization", "round_robin_gradients"): _LAYOUT,
    ("zero_optimization", "parameter_alignment"): _LAYOUT,
    ("zero_optimization", "offload_optimizer"): _OFFLOAD,
    ("zero_optimization", "offload_param"): _OFFLOAD,
    ("zero_optimization", "cpu_offload"): _OFFLOAD,
    ("zero_optimization", "cpu_offload_param"): _OFFLOAD,
    ("zero_optimization", "cpu_offload_use_pin_memory"): _OFFLOAD,
    ("zero_optimization", "zenflow"): _OFFLOAD,
    ("zero_optimization", "zero_quantized_weights"): _LOSSY,
    ("zero_optimization", "zero_quantized_gradients"): _LOSSY,
    ("zero_optimization", "zero_quantized_nontrainable_weights"): _LOSSY,
    ("zero_optimization", "compute_grad_norm"): "leaves out the gradient norm, which every step reports",
    (
        "zero_optimization",
        "stage3_module_granularity_threshold",
    ): "gathers several layers as one, which fails with tensor trains",
    ("zero_optimization", "zero_hpz_partition_size"): "needs several nodes, where nobody has tried it",
}
# What this tree decides for DeepSpeed, and the key to use instead.
_OWNED_BY_US = {
    ("train_batch_size",): "train.batch_tokens",
    ("train_micro_batch_size_per_gpu",): "train.micro_batch",
    ("gradient_accumulation_steps",): "train.micro_batch",
    ("gradient_clipping",): "train.grad_clip",
    ("bf16",): "train.precision",
    ("fp16",): "train.precision",
    ("torch_autocast",): "train.precision",
    ("optimizer",): "optim",
    ("scheduler",): "schedule",
    ("checkpoint",): "checkpoint",
    ("wandb",): "wandb",
    ("zero_optimization", "stage"): "train.zero_stage",
}


def why_refused(location: tuple[str, ...], known: list[str]) -> str:
    """The sentence about an unknown key below `deepspeed`, where the keys in `known` are possible."""
    name = ".".join(("deepspeed", *location))
    if location in _OWNED_BY_US:
        return f"{name} is decided by {_OWNED_BY_US[location]}; set that and remove this key"
    if location in _REFUSED:
        return f"{name} {_REFUSED[location]}; remove this key"
    near = difflib.get_close_matches(location[-1], known, n=1)
    place = ".".join(("deepspeed", *location[:-1]))
    hint = f"did you mean {place}.{near[0]}?" if near else f"use one of {', '.join(sorted(known))}"
    return f"{name} is not a key that can be passed through; {hint}"


def keys_of_other_stages(block: DeepSpeed, stage: int) -> list[str]:
    """One sentence for each given key of ZeRO that means nothing at this stage."""
    return [
        f"deepspeed.zero_optimization.{key} has no effect at train.zero_stage = {stage}; set another of "
        f"{', '.join(map(str, STAGES[key]))} or remove this key"
        for key in block.zero_optimization.model_dump()
        if stage not in STAGES[key]
    ]
