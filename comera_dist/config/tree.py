"""The whole configuration of a run: one tree of frozen models, read once and checked once.

Defaults < YAML file < `section.key=value` on the command line. Every mistake is reported at once, each in one sentence
that names the key, what was found and the remedy. This file imports neither torch nor DeepSpeed, so that a misspelt key
costs a fraction of a second.
"""

import math
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model
from pydantic_core import PydanticCustomError

from comera_dist.config.deepspeed import DeepSpeed
from comera_dist.config.fields import (
    LONGEST_NAME,
    MOST_RULES,
    Folder,
    Fraction,
    Modes,
    NonNegative,
    NonNegativeFloat,
    Number,
    Order,
    Patterns,
    Positive,
    PositiveFloat,
    Section,
    Seed,
    Total,
)
from comera_dist.config.model_section import FormatName, ModelSection
from comera_dist.config.registry import FORMATS, KINDS
from comera_dist.errors import ConfigError

PADDING = 0  # the token id that fills up the rows of an encoder: its data write it, its attention leaves it out


class Run(Section):
    """Where a run lives, what seeds it, and where its first weights come from."""

    name: Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    directory: Folder = Path("runs")
    seed: Seed = 1
    start_from: Folder | None = None  # directory of a run whose newest checkpoint gives the first weights and ranks


class Data(Section):
    """The prepared corpus (a folder made by a command of data_prep/) and the length of a sequence in tokens.

    A decoder reads tokenized text, an encoder tokenized pairs, a DLRM click logs, for which `seq_len` means nothing.
    """

    corpus: Folder = Path("corpora/python-stdlib")
    seq_len: Positive = 128
    masked_fraction: Annotated[float, Number, Field(gt=0.0, le=1.0)] = (
        0.15  # of the tokens of a pair that an encoder with head masked_lm has to predict
    )


def masked_places(seq_len: int, masked_fraction: float) -> int:
    """Places that a masked LM predicts in a row of `seq_len` tokens: as many in every row."""
    return max(1, math.ceil(masked_fraction * seq_len))


class LayerRule(Section):
    """Exceptions for the linear layers whose name matches a shell-style pattern, e.g. `*.o_proj`."""

    match: str
    format: FormatName | None = None
    order: Order | None = None
    rank: Positive | None = None
    outer_rank: Positive | None = None
    in_modes: Modes | None = None
    out_modes: Modes | None = None
    options: dict[str, Any] = Field(default_factory=dict)  # other options of the layers' format, as in tensor.<format>


class EmbeddingRule(Section):
    """Exceptions for the embedding tables whose name matches a shell-style pattern, e.g. `*.word_embeddings`."""

    match: str
    format: FormatName | None = None
    order: Order | None = None
    rank: Positive | None = None
    vocab_modes: Modes | None = None
    width_modes: Modes | None = None
    options: dict[str, Any] = Field(default_factory=dict)  # other options of the tables' format


class Tensor(Section):
    """Shapes of the tensor trains, and options of other formats under their names, e.g. `tensor.block_train.rank`.

    `order` counts cores per side, `rank` is the middle rank (it sets FLOPs), `outer_rank` caps all other bonds (with
    `rank` it sets the size). Embeddings are tensor-train matrices of `embedding_order` cores; tables with fewer rows
    than `embedding_min_rows` stay dense.
    """

    order: Order = 3
    rank: Positive = 32
    outer_rank: Positive | None = None  # None: as large as rank
    embedding_order: Order = 3
    embedding_rank: Positive = 32
    embedding_min_rows: NonNegative = 0
    layers: Annotated[tuple[LayerRule, ...], Field(max_length=MOST_RULES)] = ()
    embeddings: Annotated[tuple[EmbeddingRule, ...], Field(max_length=MOST_RULES)] = ()

    def options_of(self, format: str) -> Any:
        """The options of a format, its defaults where none are given."""
        return getattr(self, format) if format in type(self).model_fields else FORMATS[format].options()


@cache
def _with_formats(names: tuple[str, ...]) -> type[Tensor]:
    """The section with the options of these formats; only they are imported, because some need torch."""
    fields: Any = {name: (FORMATS[name].options, Field(default_factory=FORMATS[name].options)) for name in names}
    return create_model("Tensor", __base__=Tensor, **fields)


def _tensor_section(value: Any) -> Any:
    """The section `tensor` of a tree, with the options of the formats that it names."""
    if not isinstance(value, dict):
        return value
    named = tuple(sorted(name for name in value if name in FORMATS.names() and name not in Tensor.model_fields))
    return _with_formats(named).model_validate(value)


class Train(Section):
    """Length, batch, arithmetic and sharding of the run; exactly one of `steps` and `tokens` is given."""

    steps: Positive | None = None
    tokens: Total | None = None
    batch_tokens: Positive = 2048  # tokens of one optimizer step, over all processes
    batch_size: Positive | None = None  # sequences (a DLRM: rows) of one optimizer step, in place of batch_tokens
    micro_batch: Positive | None = None  # sequences (rows) of one forward pass of one process; None: all in one
    precision: Literal["fp32", "bf16"] = "fp32"
    zero_stage: Annotated[int, Number, Field(ge=0, le=3)] = 1
    grad_clip: NonNegativeFloat = 1.0  # largest gradient norm; 0 clips nothing
    timeout_seconds: Positive = 1800  # a process that makes no progress for this long ends itself
    cuda_graphs: bool = False  # replays the step as CUDA graphs; eager, with a word why, where that cannot be
    compile: bool = False  # torch.compile for the model; goes together with cuda_graphs, not with zero_stage 3


class GaLore(Section):
    """Of optim.kind = galore: rank of the projected gradients, steps between two projections, scale of the update."""

    rank: Positive = 128
    update_every: Positive = 200
    scale: PositiveFloat = 0.25


Decay = Annotated[float, Number, Field(ge=0.0, lt=1.0)]  # of a running mean: 1 would never take anything in


class Optim(Section):
    """AdamW, or for the dense matrices of the blocks GaLore or Muon, and AdamW for all else.

    The learning rates of cores and gates are multiples of `lr`. Muon's update has the root mean square of AdamW's, so
    that `lr` suits both.
    """

    kind: Literal["adamw", "galore", "muon"] = "adamw"
    galore: GaLore = GaLore()
    lr: PositiveFloat = 3e-3
    core_lr_scale: PositiveFloat = 1.0
    gate_lr_scale: PositiveFloat = 1.0
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1


class Schedule(Section):
    """Learning-rate schedule after a linear warm-up; `decay_fraction` is the last part of a wsd run that decays."""

    kind: Literal["cosine", "wsd", "linear", "constant"] = "cosine"
    warmup_steps: NonNegative = 0
    decay_fraction: Fraction = 0.2
    final_lr_fraction: Fraction = 0.1


class Ranks(Section):
    """Rank adaptation: an early stage presses gently on the rank gates, a late stage goes for the size that is named.

    The late stage needs one of three targets, over the layers that `layers` matches: `target_compression` (their dense
    parameters per stored one), `target_fraction` (of their stored parameters when the late stage starts), or
    `target_params` (stored parameters of the whole model).
    """

    adapt: bool = False
    layers: Patterns = ("*",)  # patterns of the tensor-train layers whose ranks may change
    removable: Patterns = ()  # of those, block layers that may lose all ranks: their output is then zero
    min_rank: Positive = 1
    sync_every: Positive = 100  # steps between two decisions, and two checks that all processes agree
    drift_tolerance: NonNegativeFloat = 1e-3  # largest difference of a gate between processes before the run stops
    pressure: NonNegativeFloat = 0.01  # γ, the weight of relative size in the objective, in nats
    warmup_steps: NonNegative = 0  # over which γ rises linearly from 0
    threshold: Fraction = 1e-3  # an index below this share of its bond's root-mean-square importance may be cut
    patience: Positive = 2  # successive syncs that an index must stay below before it is cut
    shrink_when: Fraction = 0.05  # cores are cut when that saves this share of the adapted layers' parameters
    grow: NonNegative = 0  # indices that a bond gains at a sync of the early stage while it presses against its rank
    late_start: Fraction = 0.3  # share of the run's steps after which the late stage begins
    late_end: Fraction = 0.7  # and by which it has brought the layers to their target
    rho: PositiveFloat = 0.1  # weight of the augmentation in the late objective; small values press harder
    loss_bound: PositiveFloat | None = None  # nats a token that the late stage may not exceed for the sake of size
    target_compression: PositiveFloat | None = None
    target_fraction: Annotated[float, Number, Field(gt=0.0, lt=1.0)] | None = None
    target_params: Total | None = None

    @property
    def target(self) -> str | None:
        """The key that names the target, or None for a run without a late stage."""
        return next((key for key in TARGETS if getattr(self, key) is not None), None)


TARGETS = ("target_compression", "target_fraction", "target_params")


class Evaluation(Section):
    """Validation every so many steps on at most `max_tokens` tokens (None: the whole split).

    Where `every` is None a run validates about ten times, where it is 0 only at its end. The rows of a DLRM count as
    tokens.
    """

    every: NonNegative | None = None
    max_tokens: Total | None = None

    def max_rows(self, row_tokens: int) -> int | None:
        return self.max_tokens and max(1, self.max_tokens // row_tokens)


class Checkpoint(Section):
    """A checkpoint every so many steps (0: not by steps), when so many minutes have passed since the last one (0: not
    by time), at a stop and at the end; the newest `keep` stay on the disk."""

    every: NonNegative = 0
    every_minutes: NonNegativeFloat = 15.0
    keep: Positive = 2


class Log(Section):
    """A line on the console and in metrics.jsonl every so many steps."""

    every: Positive = 10


class Wandb(Section):
    """Weights & Biases; `auto` is online where an API key is found and offline otherwise."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str = "comera_dist"
    entity: str | None = None


def _section_of_kind(value: Any) -> Any:
    """The section of the kind of model that a tree names, a decoder unless it names one."""
    if not isinstance(value, dict):
        return value
    kind = value.get("kind", "decoder")
    if kind not in KINDS.names():
        raise PydanticCustomError("unknown_kind", "expected one of {kinds}", {"kinds": ", ".join(KINDS.names())})
    return KINDS[kind].model_validate(value)


class Config(Section):
    """One run, complete."""

    run: Run = Run()
    data: Data = Data()
    model: Annotated[SerializeAsAny[ModelSection], BeforeValidator(_section_of_kind)] = Field(
        default_factory=lambda: _section_of_kind({})
    )
    tensor: Annotated[SerializeAsAny[Tensor], BeforeValidator(_tensor_section)] = Tensor()
    train: Train = Train()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    ranks: Ranks = Ranks()
    eval: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()
    wandb: Wandb = Wandb()
    deepspeed: DeepSpeed = DeepSpeed()  # passed through

    @property
    def run_directory(self) -> Path:
        return self.run.directory / self.run.name

    @property
    def row_tokens(self) -> int:
        """Tokens that one row of a batch counts for: a sequence its length, a click 1."""
        return 1 if self.model.kind == "dlrm" else self.data.seq_len

    @property
    def unit(self) -> str:
        """What rows are counted in."""
        return "rows" if self.model.kind == "dlrm" else "tokens"

    @property
    def global_batch(self) -> int:
        """Sequences (rows) of one optimizer step, over all processes."""
        return self.train.batch_size or self.train.batch_tokens // self.row_tokens

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step, over all processes; rows of a DLRM."""
        return self.global_batch * self.row_tokens

    @property
    def validation_every(self) -> int:
        """Steps between two validations; 0: only at the end."""
        return max(1, self.total_steps // 10) if self.eval.every is None else self.eval.every

    def micro_batch(self, num_processes: int) -> int:
        """Sequences (rows) of one forward pass of one process. ConfigError where the batch does not divide."""
        wanted = self.train.micro_batch or max(1, self.global_batch // num_processes)
        if self.global_batch % (wanted * num_processes):
            key, size = self._batch_key
            unit = wanted * num_processes * (size // self.global_batch)
            below = max(1, size // unit) * unit
            factors = "processes × micro_batch" + " × seq_len" * (key == "batch_tokens")
            raise ConfigError(
                f"train.{key} = {size} is not a multiple of {factors} = {unit}; nearest: {below} or {below + unit}"
            )
        return wanted

    @property
    def _batch_key(self) -> tuple[str, int]:
        if self.train.batch_size:
            return "batch_size", self.train.batch_size
        return "batch_tokens", self.train.batch_tokens

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; a token budget is rounded up to whole steps."""
        return self.train.steps or -(-self.train.tokens // self.step_tokens)
