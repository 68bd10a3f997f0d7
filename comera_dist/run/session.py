"""A run as one process holds it: how far it is, and what can be done with it."""

import time
from dataclasses import dataclass, field

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.checkpoints.write import Saver
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import bond_ranks, mean_rank
from comera_dist.data.tasks import Task
from comera_dist.formats.plan import write_plan
from comera_dist.report.records import Observers, RanksSynced, RunEnded, RunFinished, RunStarted, StepLogged
from comera_dist.run.feed import Feed
from comera_dist.run.meter import Meter
from comera_dist.run.run_model import RunModel
from comera_dist.run.schedule import lr_fraction
from comera_dist.runtime.memory import peak_memory_bytes
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.step import Requests, StepResult, check_validation, seed_step
from comera_dist.storage.run_directory import RunDirectory


@dataclass
class Session:
    """Makes the steps of a run with parts that were opened for it. Most calls are collective.

    `step` counts finished optimizer steps, `rows` the rows of all processes that they have read. `clock_zero` is the
    time.monotonic() at which the run began, pauses between its starts left out.
    """

    config: Config
    processes: Processes
    directory: RunDirectory
    task: Task
    feed: Feed
    model: RunModel
    saver: Saver
    observers: Observers
    clock_zero: float
    step: int = 0
    rows: int = 0
    saved_step: int | None = None
    lr: float = 0.0
    _validated_step: int | None = None
    _validation: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total_steps = self.config.total_steps
        self._meter, self._saved_at = Meter(), time.monotonic()

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Takes over how far the run was. Raises DataError where the data are not those of the checkpoint."""
        self.step = self.saved_step = checkpoint.manifest["step"]
        self.rows = self.feed.resume(checkpoint.run["cursor"])
        self.clock_zero -= checkpoint.run["wall_seconds"]

    def announce(self) -> None:
        """Describes the run in its directory, and tells the observers that it starts."""
        if self.processes.is_first:
            self._describe()
        model, count = self.model, self.processes.count
        self.observers(RunStarted(self.config, self.directory, model.plan, model.estimate, count, self.step))

    def train_step(self, stop_requested: bool) -> StepResult:
        """One optimizer step. Collective. DataError on all processes when one cannot read its rows."""
        seed_step(self.config.run.seed, self.step, self.processes.index)
        self.lr = self.config.optim.lr * lr_fraction(self.config.schedule, self.step, self.total_steps)
        with self._meter:
            with self._meter.waiting():
                batches = self.feed.step(self.rows)
            requests = Requests(stop_requested, self._save_is_overdue())
            result = self.model.engine.step(batches, self.lr, requests, self.model.pressure(self.step))
        self.step += 1
        self.rows += self.config.global_batch
        return result

    def adapt_ranks(self) -> None:
        """Where a sync of the ranks is due: goes on with a resized model where that is decided. Collective.

        Raises RankDivergence where processes disagree.
        """
        record = self.model.adapt(self.step)
        if record is not None:
            self.observers(RanksSynced(record | {"tokens": self.tokens, "params": self.model.estimate.params}))

    def is_due(self, every: int) -> bool:
        """At every `every`-th step (0: never) and at the last one."""
        return self.step == self.total_steps or (every > 0 and self.step % every == 0)

    def validate(self) -> dict[str, float]:
        """`loss` in nats a target and the task's other figures on the split `valid`, computed once a step. Collective.

        Raises TrainingError where the loss is not finite.
        """
        if self._validated_step != self.step:
            self._validation = self.task.figures(self.model.engine.measure(self.feed.validation), "valid")
            self._validated_step = self.step
        check_validation(self._validation["loss"], self.step)
        return self._validation

    def log(self, result: StepResult, validation: dict[str, float] | None) -> None:
        """Tells the observers the figures of the last step. Collective."""
        figures = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": result.loss,
            "lr": self.lr,
            "grad_norm": result.grad_norm,
            "tokens_per_second": self.config.step_tokens / self._meter.seconds_a_step,
            "step_ms": 1000 * self._meter.seconds_a_step,
            "data_wait_fraction": self._meter.waited_fraction,
            "peak_memory_bytes": peak_memory_bytes(),
            "params": self.model.estimate.params,
            "size_bytes": self.model.estimate.size_bytes,
            "stage": self.model.stage,
            "mean_rank": mean_rank(self.model.plan),
            "gate_drift": self.model.engine.gate_drift(),
        }
        if validation is not None:
            figures |= {f"val_{name}": figure for name, figure in validation.items()}
        seconds_left = self._meter.seconds_a_step * (self.total_steps - self.step)
        self.observers(StepLogged(figures, self.model.estimate.compression, seconds_left))
        self._meter = Meter()

    def save(self) -> None:
        """Publishes a checkpoint. Collective. Nothing in its record belongs to one process.

        DataError where files of the data have turned out to be damaged.
        """
        self.feed.data_check.raise_if_damaged()
        if not self.directory.still_held(self.processes):
            self.processes.say(f"{self.directory.path} was removed; it is made anew, without what it held.")
            if self.processes.is_first:
                self._describe()
        record = {
            "config": self.config.model_dump(mode="json"),
            "plan": write_plan(self.model.plan),
            "planned": write_plan(self.model.planned),
            "vocabulary": self.task.vocabulary,
            "cursor": vars(self.feed.cursor(self.rows)),
            "wandb_id": self.directory.facts().get("wandb_id"),
            "wall_seconds": self.wall_seconds,
            "ranks": self.model.ranks and self.model.ranks.state(),
        }
        self.saver.save(self.step, self.model.engine, record)
        self.saved_step, self._saved_at = self.step, time.monotonic()

    def finish(self) -> None:
        """Validates once more and tells the observers the summary. Collective."""
        validation = self.validate()
        if not self.processes.is_first:
            return
        estimate, adaptation = self.model.estimate, self.model.adaptation(self.config.ranks.layers, self.directory)
        summary = {
            **{f"val_{name}": figure for name, figure in validation.items()},
            "params": estimate.params,
            "dense_params": estimate.dense_params,
            "compression": estimate.compression,
            "tokens": self.tokens,
            "unit": self.config.unit,
            "wall_seconds": self.wall_seconds,
            "ranks": bond_ranks(self.model.plan),
        }
        if adaptation is not None:
            summary["adaptation"] = adaptation.figures
        self.observers(RunFinished(summary, adaptation))

    def end(self, in_haste: bool) -> None:
        """Tells the observers that no step follows, however the run has ended."""
        self.observers(RunEnded(in_haste))

    def close(self) -> None:
        """Lets go of everything that takes memory. Collective."""
        self.feed.close()
        self.model.engine.close()

    @property
    def tokens(self) -> int:
        return self.rows * self.config.row_tokens

    @property
    def wall_seconds(self) -> float:
        """Seconds spent by all starts of this run, up to the last checkpoint of each."""
        return time.monotonic() - self.clock_zero

    def _save_is_overdue(self) -> bool:
        minutes = self.config.checkpoint.every_minutes
        return minutes > 0 and time.monotonic() - self._saved_at >= 60 * minutes

    def _describe(self) -> None:
        self.directory.open(self.config, self.processes.count, self.step)
