"""The keys of `train`: length, batch, arithmetic and sharding of a run, and what ends it."""

from typing import Annotated, Literal

from pydantic import Field

from comera_dist.config.fields import Folder, NonNegative, NonNegativeFloat, Number, Positive, Section, Total


class StopEarly(Section):
    """The end of a run before its last step, if the validation loss has stopped improving."""

    patience: Positive | None = None
    """Validations in a row without an improvement after which the run ends; null makes all steps."""
    min_delta: NonNegativeFloat = 0.0
    """Smallest decrease of the best validation loss that is an improvement, in nats a target; 0 takes any decrease."""

    @property
    def described(self) -> str:
        """The rule in summary.json, where it ended the run."""
        return f"train.stop_early (patience {self.patience}, min_delta {self.min_delta:g})"


class BatchRamp(Section):
    """A batch that grows to its size in the first steps of a run, in multiples of its first size."""

    start: Positive | None = None
    """Sequences (a DLRM: rows) of the first step, a divisor of those of the whole batch; null starts with the whole."""
    steps: NonNegative = 0
    """Steps before the batch is whole; each multiple of `train.batch_ramp.start` below it takes an equal share."""


class Teacher(Section):
    """A trained model of the same vocabulary whose predictions are a part of the loss (knowledge distillation)."""

    run: Folder | None = None
    """Folder of the run, a checkpoint of which teaches; null has no teacher."""
    step: NonNegative | None = None
    """Step of the checkpoint that teaches; null takes the newest one, or that with which the run began."""
    share: Annotated[float, Number, Field(gt=0, le=1)] = 0.5
    """Share of each token's loss that is the cross-entropy with the teacher's predictions instead of the target."""


class Train(Section):
    """Length, batch, arithmetic and sharding of the run; exactly one of `steps` and `tokens` must be given."""

    steps: Positive | None = None
    """Optimizer steps of the run; give either this or `train.tokens`."""
    tokens: Total | None = None
    """Tokens to train on, rounded up to whole steps; give either this or `train.steps`."""
    batch_tokens: Positive = 2048
    """Tokens of one optimizer step, over all processes; the default is chosen for two CPU cores."""
    batch_size: Positive | None = None
    """Sequences (a DLRM: rows) of one optimizer step, over all processes, in place of `train.batch_tokens`."""
    batch_ramp: BatchRamp = BatchRamp()
    micro_batch: Positive | None = None
    """Sequences (a DLRM: rows) of one forward pass of one process; null takes the process's share of the smallest
    batch."""
    precision: Literal["fp32", "bf16", "fp8"] = "fp32"
    """Arithmetic of matrix products, where fp8 is that of layers, with all other products in bf16, and is emulated
    exactly on devices without it; weights are always fp32."""
    zero_stage: Annotated[int, Number, Field(ge=0, le=3)] = 1
    """ZeRO stage: processes share nothing at 0, the optimizer's state at 1, also gradients at 2, also weights at 3."""
    grad_clip: NonNegativeFloat = 1.0
    """Norm to which a larger gradient is scaled down; 0 clips nothing, and the default is GPT-3's."""
    on_bad_step: Literal["stop", "skip", "rewind"] = "stop"
    """A step whose figures are not finite, or whose loss is a spike, stops the run, is skipped, or makes the run go on
    from its newest checkpoint without the data since then."""
    spike_deviations: NonNegativeFloat = 0.0
    """Standard deviations above the mean of the last 64 losses from which a loss is a spike; 0 finds no spikes, and
    none is found in the 64 steps after a cut of ranks."""
    stop_early: StopEarly = StopEarly()
    teacher: Teacher = Teacher()
    timeout_seconds: Positive = 1800
    """Seconds without progress after which a process ends itself; the default is that of torch.distributed."""
    cuda_graphs: bool = False
    """Whether steps are replayed as CUDA graphs; where that is impossible, the run takes eager steps and says why."""
    compile: bool = False
    """Whether torch.compile compiles the model; it has no effect at `train.zero_stage` 3."""
    activation_checkpointing: Literal["none", "selective", "block"] = "none"
    """Activations that the backward pass computes again: `none`, all within a `block`, or all but costly products."""
