"""The whole configuration of a run: one tree of frozen models, read once and checked once.

Defaults < YAML file < `section.key=value` on the command line. This file imports neither torch nor DeepSpeed, so that a
misspelt key is reported in a fraction of a second.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from comera_dist.config.batch_sizes import BatchSizes
from comera_dist.config.by_kind import MODEL
from comera_dist.config.data_section import Data
from comera_dist.config.deepspeed import DeepSpeed
from comera_dist.config.fields import (
    LONGEST_NAME,
    Folder,
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    Section,
    Seed,
    StepRange,
    Total,
)
from comera_dist.config.model_section import ModelSection
from comera_dist.config.optim_section import Optim
from comera_dist.config.ranks_section import Ranks
from comera_dist.config.registry import KINDS
from comera_dist.config.tensor_section import Tensor, tensor_section
from comera_dist.config.train_section import Train
from comera_dist.errors import ConfigError


class Run(Section):
    """Name and folder of the run, its seed, and the source of its first weights."""

    name: Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Name of the run and of its folder: letters, digits, dots, underscores and dashes."""
    directory: Folder = Path("runs")
    """Folder that holds the folders of all runs."""
    seed: Seed = 1
    """Seed of the initial weights, the order of the data, dropout and masked words."""
    start_from: Folder | None = None
    """Folder of a run, a checkpoint of which gives the first weights and ranks; null starts with random weights."""
    start_step: NonNegative | None = None
    """Step of the checkpoint that `run.start_from` takes; null takes the newest one."""


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
    keep_best: bool = False
    """Whether the checkpoint of the lowest validation loss stays too; each validation that lowers it saves one."""
    mirror: Annotated[str, Field(min_length=1)] | None = None
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
    tensor: Annotated[SerializeAsAny[Tensor], BeforeValidator(tensor_section)] = Tensor()
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

    @property
    def _smallest_batch(self) -> int:
        return self.train.batch_ramp.start or self.global_batch

    def forward_rows(self, num_processes: int) -> int:
        """As `micro_batch`, whether or not the batch divides."""
        return self.train.micro_batch or max(1, self._smallest_batch // num_processes)

    def micro_batch(self, num_processes: int) -> int:
        """Sequences (rows) of one forward pass of one process. Raises ConfigError if the batch does not divide."""
        train, smallest, wanted = self.train, self._smallest_batch, self.forward_rows(num_processes)
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

    def micro_batches(self, num_processes: int) -> int:
        """Forward passes of one process in a step of the whole batch, whether or not it divides."""
        return max(1, self.global_batch // (self.forward_rows(num_processes) * num_processes))

    def tokens_per_forward(self, num_processes: int) -> int:
        """Tokens (rows) of one forward pass of one process. Raises ConfigError if the batch does not divide."""
        return self.micro_batch(num_processes) * self.row_tokens
