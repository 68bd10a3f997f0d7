"""The whole configuration of a run: one tree of frozen models, read once and checked once.

Defaults < YAML file < `section.key=value` on the command line. This file imports neither torch nor DeepSpeed, so that a
misspelt key is reported in a fraction of a second.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model

from comera_dist.config.batch_sizes import BatchSizes
from comera_dist.config.by_kind import MODEL, POLICY
from comera_dist.config.data_section import Data
from comera_dist.config.deepspeed import DeepSpeed
from comera_dist.config.fields import (
    LONGEST_NAME,
    MOST_RULES,
    Folder,
    Fraction,
    Modes,
    NameIn,
    NonNegative,
    NonNegativeFloat,
    Number,
    Order,
    Patterns,
    Positive,
    PositiveFloat,
    Section,
    Seed,
    StepRange,
    Total,
)
from comera_dist.config.model_section import FormatName, ModelSection
from comera_dist.config.own_sections import ChoosingSection
from comera_dist.config.policy_section import PolicySection
from comera_dist.config.registry import FORMATS, KINDS, OPTIMIZERS
from comera_dist.config.train_section import Train
from comera_dist.errors import ConfigError

WITHOUT_KEYS = ("dense", "tensor")  # formats without a section of keys: those of tensor trains stand in `tensor` itself
TARGETS = ("target_compression", "target_fraction", "target_params")  # keys of `ranks`, of which one may be set


class Run(Section):
    """Name and folder of the run, its seed, and the source of its first weights."""

    name: Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Name of the run and of its folder: letters, digits, dots, underscores and dashes."""
    directory: Folder = Path("runs")
    """Folder that holds the folders of all runs."""
    seed: Seed = 1
    """Seed of the initial weights, the order of the data, dropout and masked words."""
    start_from: Folder | None = None
    """Folder of a run whose newest checkpoint gives the first weights and ranks; null starts with random weights."""


class Rule(Section):
    """Exceptions for the layers whose name matches a shell-style pattern."""

    match: str
    """Shell-style pattern of layer names, such as `*.o_proj`; the first rule that matches a layer applies to it."""
    format: FormatName | None = None
    """Format of the matching layers; null takes the format that `model.format` gives them."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Other options of the layers' format, by the names of the keys in `tensor.<format>`."""


class LayerRule(Rule):
    """Exceptions for the linear layers whose name matches a shell-style pattern."""

    order: Order | None = None
    """Cores per side; null takes `tensor.order`."""
    rank: Positive | None = None
    """Rank of the middle bond; null takes `tensor.rank`."""
    outer_rank: Positive | None = None
    """Largest rank of all other bonds; null takes `tensor.outer_rank`."""
    in_modes: Modes | None = None
    """Factors of the in-features, one for each core; their product may be larger, and null lets the planner choose."""
    out_modes: Modes | None = None
    """Factors of the out-features, one for each core; their product may be larger, and null lets the planner choose."""


class EmbeddingRule(Rule):
    """Exceptions for the embedding tables whose name matches a shell-style pattern."""

    order: Order | None = None
    """Cores of the tensor-train matrix; null takes `tensor.embedding_order`."""
    rank: Positive | None = None
    """Largest rank of all bonds; null takes `tensor.embedding_rank`."""
    vocab_modes: Modes | None = None
    """Factors of the row count, one for each core; their product may be larger, and null lets the planner choose."""
    width_modes: Modes | None = None
    """Factors of the width, one for each core; null lets the planner choose."""


class Budget(Section):
    """Largest costs of the whole model: matrices of the format `auto` get the largest share of their dense numbers that
    meets all of them.
    """

    parameters: Total | None = None
    """Stored numbers."""
    flops_per_token: PositiveFloat | None = None
    """Training FLOPs of a token (a DLRM: of a row), merging of factors included."""
    state_bytes: Total | None = None
    """Bytes of weights, gradients and optimizer state on the fullest process, without activations."""


class Tensor(Section):
    """Shapes of the tensor trains, and options of other formats under their names, e.g. `tensor.block_train.rank`.

    The defaults are chosen for small models.
    """

    order: Order = 3
    """Cores per side of a linear layer's tensor train; 1 is plain low rank."""
    rank: Positive = 32
    """Rank of the middle bond of a linear layer, which sets its FLOPs."""
    outer_rank: Positive | None = None
    """Largest rank of all other bonds of a linear layer, which sets its size; null allows as much as `tensor.rank`."""
    embedding_order: Order = 3
    """Cores of an embedding's tensor-train matrix."""
    embedding_rank: Positive = 32
    """Largest rank of all bonds of an embedding."""
    embedding_min_rows: NonNegative = 0
    """Number of rows below which an embedding table stays dense."""
    layers: Annotated[tuple[LayerRule, ...], Field(max_length=MOST_RULES)] = ()
    """Exceptions for single linear layers, as a list of rules."""
    embeddings: Annotated[tuple[EmbeddingRule, ...], Field(max_length=MOST_RULES)] = ()
    """Exceptions for single embedding tables, as a list of rules."""
    budget: Budget = Budget()
    """Largest costs of the whole model, for matrices of the format `auto`."""

    def options_of(self, format: str) -> Any:
        """The options of a format; its defaults if the configuration sets none."""
        return getattr(self, format) if format in type(self).model_fields else FORMATS[format].options()

    def with_options(self, format: str, options: Section) -> "Tensor":
        """The same section with other options of a format."""
        section: Tensor = _tensor_section({**dict(self), format: options})
        return section


@cache
def _with_formats(names: tuple[str, ...]) -> type[Tensor]:
    """The section with the options of these formats. Others are not imported, because some import torch."""
    fields: Any = {name: (FORMATS[name].options, Field(default_factory=FORMATS[name].options)) for name in names}
    return create_model("Tensor", __base__=Tensor, **fields)


def _tensor_section(value: Any) -> Any:
    """The section `tensor` of a tree, with the options of the formats that it names."""
    if not isinstance(value, dict):
        return value
    named = tuple(sorted(name for name in value if name in FORMATS.names() and name not in Tensor.model_fields))
    return _with_formats(named).model_validate(value)


Decay = Annotated[float, Number, Field(ge=0.0, lt=1.0)]  # of a running mean, which would never change at 1


class Optim(ChoosingSection):
    """The optimizer and its settings. GaLore and Muon update the dense matrices of the blocks, spectral descent also
    the cores of other linear layers in blocks, AdamW everything else.

    One `lr` suits all: Muon's update has the same root mean square as AdamW's, and the size of spectral steps is
    measured for dense matrices. Settings of a single optimizer are in the section of its name, such as `optim.galore`.
    """

    registry = OPTIMIZERS
    kind: Annotated[str, NameIn(OPTIMIZERS)] = "adamw"
    """Optimizer of the blocks' matrices; AdamW updates all other parameters."""
    lr: PositiveFloat = 3e-3
    """Highest learning rate of the schedule; the default is chosen for the quickstart."""
    matrix_lr_scale: PositiveFloat = 1.0
    """Learning rate of the parameters that `optim.kind` updates instead of AdamW, as a multiple of `optim.lr`."""
    table_lr_scale: PositiveFloat = 1.0
    """Learning rate of embedding tables, but not of a narrow table's projection, as a multiple of `optim.lr`."""
    head_lr_scale: PositiveFloat = 1.0
    """Learning rate of an output layer `lm_head` that is not tied to the table, as a multiple of `optim.lr`."""
    core_lr_scale: PositiveFloat = 1.0
    """Learning rate of cores as a multiple of `optim.lr`."""
    core_rates: Literal["equal", "fan_in"] = "equal"
    """Whether AdamW steps all cores at one rate, or each core of a block by the number of inputs that it sums over."""
    gate_lr_scale: PositiveFloat = 1.0
    """Learning rate of rank gates as a multiple of `optim.lr`."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moments; the defaults are GPT-3's."""
    eps: PositiveFloat = 1e-8
    """Number that AdamW adds to the root of the second moments; the default is torch's."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled weight decay of matrices, tables and cores, not of gates, norms and biases; the default is GPT-3's."""


class Schedule(Section):
    """Learning-rate schedule: a linear warm-up, then the course that `kind` names."""

    kind: Literal["cosine", "wsd", "linear", "constant"] = "cosine"
    """Course of the learning rate after the warm-up; `wsd` is constant and then decays linearly."""
    warmup_steps: NonNegative = 0
    """Steps over which the learning rate rises linearly from 0."""
    decay_fraction: Fraction = 0.2
    """Share of the run at its end over which `wsd` decays."""
    final_lr_fraction: Fraction = 0.1
    """Learning rate at the end of the run as a share of `optim.lr`; the default is GPT-3's."""


class Ranks(Section):
    """Rank adaptation: an early stage penalizes rank gates slightly, a late stage reaches the target size.

    The late stage needs one of the three targets. Without a target there is only the early stage. Constants without a
    source are chosen; docs/design.md has measurements.
    """

    adapt: bool = False
    """Whether ranks adapt during training."""
    layers: Patterns = ("*",)
    """Shell-style patterns of the layers whose ranks may change, out of the layers with rank gates."""
    removable: Patterns = ()
    """Shell-style patterns of the block layers that may lose all ranks; the output of such a layer is then zero."""
    min_rank: Positive = 1
    """Smallest rank to which a bond may be cut, except in removable layers."""
    policy: Annotated[SerializeAsAny[PolicySection], BeforeValidator(POLICY.read)] = Field(
        default_factory=lambda: POLICY.read({})
    )
    """Policy that decides which indices are cut and added: its name, or its keys with its name as `kind`."""
    sync_every: Positive = 100
    """Steps between two decisions, at which all processes also check that they agree."""
    drift_tolerance: NonNegativeFloat = 1e-3
    """Largest difference of a gate between processes; the run stops if it is exceeded."""
    pressure: NonNegativeFloat = 0.01
    """Weight γ of the relative size in the objective, in nats; docs/design.md says why the default is small."""
    warmup_steps: NonNegative = 0
    """Steps over which γ rises linearly from 0."""
    late_start: Fraction = 0.3
    """Share of the run's steps after which the late stage begins; docs/design.md compares the default with 0.15."""
    late_end: Fraction = 0.7
    """Share of the run's steps after which the target is reached; docs/design.md compares the default with 0.5."""
    rho: PositiveFloat = 0.1
    """Weight ρ of the augmentation in the late stage's objective; smaller values press harder."""
    loss_bound: PositiveFloat | None = None
    """Loss in nats per token above which the late stage stops reducing the size; null sets no bound."""
    target_compression: PositiveFloat | None = None
    """Target: dense parameters of the adapted layers for each stored one."""
    target_fraction: Annotated[float, Number, Field(gt=0.0, lt=1.0)] | None = None
    """Target: share of the parameters that the adapted layers store when the late stage begins."""
    target_params: Total | None = None
    """Target: stored parameters of the whole model."""

    @property
    def target(self) -> str | None:
        """The key that names the target, or None for a run without a late stage."""
        return next((key for key in TARGETS if getattr(self, key) is not None), None)


class Evaluation(Section):
    """Validation during the run and at its end."""

    every: NonNegative | None = None
    """Steps between two validations; null validates about ten times in a run, 0 only at its end."""
    max_tokens: Total | None = None
    """Largest number of tokens (a DLRM: rows) of one validation; null takes the whole split."""

    def max_rows(self, row_tokens: int) -> int | None:
        """Rows of one validation, of `row_tokens` tokens each; None for the whole split."""
        return self.max_tokens and max(1, self.max_tokens // row_tokens)


class Checkpoint(Section):
    """When checkpoints are saved, besides at a stop and at the end, and how many are kept."""

    every: NonNegative = 0
    """Steps between two checkpoints; 0 saves none by steps."""
    every_minutes: NonNegativeFloat = 15.0
    """Minutes between two checkpoints; 0 saves none by time."""
    keep: Positive = 2
    """Newest intact checkpoints that stay on the disk; with two, one may be damaged."""
    keep_every: NonNegative = 0
    """Steps between checkpoints that are never deleted, and are saved besides the others; 0 keeps none for ever."""
    mirror: str | None = None
    """URL of a folder to which checkpoints and logs are copied, such as s3://bucket/runs; a start that finds no
    checkpoint in `run.directory` goes on from there."""


class Profile(Section):
    """A trace of steps by torch's profiler on the first process, with a snapshot of memory on a GPU."""

    steps: StepRange | None = None
    """Steps that are traced, such as 10-12; null traces none."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The first and the last of these steps."""
        if self.steps is None:
            return None
        first, _, last = self.steps.partition("-")
        return int(first), int(last or first)


class Log(Section):
    """Lines of the log, and plots of them."""

    every: Positive = 10
    """Steps between two lines on the console and in metrics.jsonl."""
    norms_every: NonNegative = 0
    """Steps between two lines in norms.jsonl, norms of each layer's gradient, weights and update; 0 writes none."""
    plots: bool = True
    """Draw heat maps about ten times in the run, and all plots when it is finished, which takes about a second."""
    profile: Profile = Profile()


class Wandb(Section):
    """Weights & Biases."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Where Weights & Biases writes; `auto` is online if an API key is found and offline otherwise."""
    project: str = "comera_dist"
    """Project of Weights & Biases."""
    entity: str | None = None
    """User or team of Weights & Biases; null takes the account's default."""


class Tensorboard(Section):
    """TensorBoard."""

    enabled: bool = False
    """Whether figures are written for TensorBoard into the run's folder, which needs the package `tensorboard`."""


class Config(Section):
    """One run, complete."""

    run: Run = Run()
    data: Data = Data()
    model: Annotated[SerializeAsAny[ModelSection], BeforeValidator(MODEL.read)] = Field(
        default_factory=lambda: MODEL.read({})
    )
    tensor: Annotated[SerializeAsAny[Tensor], BeforeValidator(_tensor_section)] = Tensor()
    train: Train = Train()
    optim: Optim = Field(default_factory=Optim)  # made later, because the files of optimizers import this one
    schedule: Schedule = Schedule()
    ranks: Ranks = Field(default_factory=Ranks)
    eval: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()
    wandb: Wandb = Wandb()
    tensorboard: Tensorboard = Tensorboard()
    deepspeed: DeepSpeed = DeepSpeed()

    @property
    def run_directory(self) -> Path:
        """Folder of the run."""
        return self.run.directory / self.run.name

    @property
    def row_tokens(self) -> int:
        """Tokens of one row of a batch: the length of a sequence, or 1 for a row of a DLRM."""
        count: int = KINDS[self.model.kind].row_tokens(self)
        return count

    @property
    def unit(self) -> str:
        """The plural in which a run counts its data: tokens or rows."""
        name: str = KINDS[self.model.kind].unit
        return name

    @property
    def global_batch(self) -> int:
        """Sequences (rows) of one optimizer step, over all processes; after the ramp, where the batch grows."""
        return self.train.batch_size or self.train.batch_tokens // self.row_tokens

    @property
    def step_tokens(self) -> int:
        """Tokens (rows) of one optimizer step, over all processes; after the ramp, where the batch grows."""
        return self.global_batch * self.row_tokens

    @property
    def batch_sizes(self) -> BatchSizes:
        """Sequences (rows) of each optimizer step, over all processes."""
        ramp, whole = self.train.batch_ramp, self.global_batch
        return BatchSizes(whole, ramp.start or whole, ramp.steps)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; a token budget is rounded up to whole steps."""
        return self.train.steps or self.batch_sizes.steps_of(-(-(self.train.tokens or 0) // self.row_tokens))

    @property
    def total_tokens(self) -> int:
        """Tokens (rows) of the whole run."""
        return self.batch_sizes.before(self.total_steps) * self.row_tokens

    @property
    def validation_every(self) -> int:
        """Steps between two validations; 0 validates only at the end."""
        return max(1, self.total_steps // 10) if self.eval.every is None else self.eval.every

    def micro_batch(self, num_processes: int) -> int:
        """Sequences (rows) of one forward pass of one process. Raises ConfigError if the batch does not divide."""
        train, smallest = self.train, self.train.batch_ramp.start or self.global_batch
        wanted = train.micro_batch or max(1, smallest // num_processes)
        if smallest % (wanted * num_processes):
            sizes = {"batch_ramp.start": train.batch_ramp.start, "batch_size": train.batch_size}
            key, size = next(((k, n) for k, n in sizes.items() if n), ("batch_tokens", train.batch_tokens))
            unit = wanted * num_processes * (size // smallest)
            below = max(1, size // unit) * unit
            factors = "processes × micro_batch" + " × seq_len" * (key == "batch_tokens")
            raise ConfigError(
                f"train.{key} = {size} is not a multiple of {factors} = {unit}; nearest: {below} or {below + unit}"
            )
        return wanted

    def tokens_per_forward(self, num_processes: int) -> int:
        """Tokens (rows) of one forward pass of one process. Raises ConfigError if the batch does not divide."""
        return self.micro_batch(num_processes) * self.row_tokens
