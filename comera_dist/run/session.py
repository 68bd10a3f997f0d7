"""A run as one process holds it: how far it is, and its step, validation, log and checkpoint."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import bond_ranks, mean_rank
from comera_dist.data.batches import Cursor
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import CheckpointError
from comera_dist.formats.plan import write_plan
from comera_dist.report.records import NormsMeasured, Observers, RanksSynced, RunFinished, RunStarted, StepLogged
from comera_dist.run.feed import Feed
from comera_dist.run.held_out import until_stop
from comera_dist.run.loss_watch import LossWatch
from comera_dist.run.patience import Patience
from comera_dist.run.profiling import StepProfile
from comera_dist.run.run_model import RunModel
from comera_dist.run.saves import Saves
from comera_dist.run.schedule import lr_fraction
from comera_dist.run.teacher import teacher_record
from comera_dist.run.unlogged_steps import UnloggedSteps
from comera_dist.runtime.endings import StopSignal
from comera_dist.runtime.memory import peak_memory_bytes
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.step import Requests, StepResult, check_validation, seed_step
from comera_dist.storage.run_directory import RunDirectory


@dataclass
class Session:
    """Makes the steps of a run with parts that were opened for it. Most methods are collective.

    `step` counts finished steps, `rows` the rows that all processes have read or passed over for them, and
    `passed_over` the latter alone. `rewinds` holds the row with which the run goes on after a step. `clock_zero` is the
    time.monotonic() at which the run began, as if there had been no pauses between its starts.
    """

    config: Config
    processes: Processes
    directory: RunDirectory
    task: Task[Any] | Mixture
    feed: Feed
    model: RunModel
    saves: Saves
    observers: Observers
    watch: LossWatch
    unlogged: UnloggedSteps
    patience: Patience
    rewinds: Mapping[int, int]
    clock_zero: float
    profile: StepProfile | None = None  # of the first process, where one is configured
    step: int = 0
    rows: int = 0
    passed_over: int = 0
    _validated_step: int | None = None
    _validation: dict[str, float | None] = field(default_factory=dict)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continues where `checkpoint` was saved. Raises DataError for other data, another seed or sequence length."""
        self.step = checkpoint.manifest["step"]
        self.saves.resume(self.step)
        self.rows = self.feed.batches.resume(Cursor.of_record(checkpoint.run["cursor"]))
        self.passed_over = checkpoint.run.get("passed_over", 0)  # absent in earlier versions
        self.clock_zero -= checkpoint.run["wall_seconds"]
        # Checkpoints before 2026-11-23 lack these two.
        watch, unlogged = checkpoint.run.get("watch"), checkpoint.run.get("unlogged")
        if watch is not None:
            self.watch.load(watch)
        # Checkpoints before train.stop_early was a key lack it.
        if (patience := checkpoint.run.get("stop_early")) is not None:
            self.patience.load(patience)
            self.saves.find_best()
        if unlogged is not None and not self._has_logged():
            self.unlogged.load(unlogged, self.step, self.model.estimate.flops_per_token)

    def announce(self) -> None:
        """Describes the run in its directory, and tells the observers that it starts."""
        self._describe()
        if self.processes.is_first and not self.is_over:
            self.directory.unfinish()
        model, count = self.model, self.processes.count
        self.observers(RunStarted(self.config, self.directory, model.plan, model.estimate, count, self.step))

    def train_step(self, stop_requested: bool) -> StepResult:
        """One optimizer step. Collective. Raises DataError on all processes if one cannot read its rows."""
        with nullcontext() if self.profile is None else self.profile.around(self.step + 1):
            return self._train_step(stop_requested)

    def _train_step(self, stop_requested: bool) -> StepResult:
        seed_step(self.config.run.seed, self.step, self.processes.index)
        lr = self.config.optim.lr * lr_fraction(self.config.schedule, self.step, self.total_steps)
        next_row = max(self.rows, self.rewinds.get(self.step, 0))
        self.passed_over, self.rows = self.passed_over + next_row - self.rows, next_row
        started = time.perf_counter()
        batches = self.feed.step(self.step, self.rows)
        waited = time.perf_counter() - started
        requests = Requests(stop_requested, self.saves.is_overdue())
        pressure = self.model.pressure(self.step)
        result = self.model.engine.step(batches, lr, requests, pressure, self.watch.accepts, self._norms_are_due)
        seconds = waited, time.perf_counter() - started
        rows = self.config.batch_sizes.at(self.step)
        logged_lr = lr * self.model.engine.logged_lr_scale
        self.unlogged.add(result, logged_lr, seconds, rows, self.model.estimate.flops_per_token)
        self.watch.note(result.loss, result.is_applied)
        self.step += 1
        self.rows += rows
        if result.norms is not None:
            self.observers(NormsMeasured({"step": self.step, "tokens": self.tokens, **result.norms}))
        return result

    def adapt_ranks(self) -> None:
        """If a sync of the ranks is due: continues with the model that it decides. Collective.

        Raises RankDivergence if processes disagree.
        """
        record = self.model.adapt(self.step)
        if record is not None:
            if record["cut"]:
                self.watch.forget()
            self.observers(RanksSynced(record | {"tokens": self.tokens, "params": self.model.estimate.params}))

    def is_due(self, every: int) -> bool:
        """True at every `every`-th step (0: never) and at the last one."""
        return self.step == self.total_steps or (every > 0 and self.step % every == 0)

    @property
    def save_is_due(self) -> bool:
        """Whether a checkpoint is due by steps."""
        checkpoint = self.config.checkpoint
        return self.is_due(checkpoint.every) or self.is_due(checkpoint.keep_every)

    def validate(self, stop: StopSignal) -> dict[str, float | None]:
        """`loss` in nats a target and the task's other figures on the split `valid`, computed once a step. Collective.

        Raises TrainingError if the loss is not finite, and StopRequested on all processes if one is asked to stop
        meanwhile: a split may take longer than the time until a scheduler kills.
        """
        if self._validated_step != self.step:
            measure = self.model.engine.measure
            self._validation, _ = self.feed.validation.figures(lambda batches: measure(until_stop(batches, stop)))
            self._validated_step = self.step
        loss = self._validation["loss"]
        check_validation(math.nan if loss is None else loss, self.step)
        return self._validation

    def judge(self, stop: StopSignal) -> dict[str, float | None]:
        """Like `validate`; with train.stop_early also counts whether the loss has improved. Collective."""
        validation = self.validate(stop)
        loss = validation["loss"]
        if self.config.ranks.target is not None and self.model.stage != "settled":
            self.patience.pass_over(self.step)  # a loss of a larger model: cuts would look like a lost improvement
        elif loss is not None:
            self.patience.judge(self.step, loss)
        return validation

    @property
    def owes_judgement(self) -> bool:
        """Whether the present step was saved and logged by an earlier start, and its validation is not yet judged."""
        counts = self.config.train.stop_early.patience is not None or self.config.checkpoint.keep_best
        is_open = counts and self.patience.judged_step < self.step
        return is_open and self.is_due(self.config.validation_every) and not self.watch.bad_in_a_row

    @property
    def is_over(self) -> bool:
        """Whether the run makes no further step."""
        return self.step >= self.total_steps or self.patience.is_exhausted

    def log(self, validation: dict[str, float | None] | None) -> None:
        """Tells the observers the figures of the last step; times are means since the last log. Collective."""
        figures = {
            "step": self.step,
            "tokens": self.tokens,
            **self.unlogged.figures(self.model.estimate.flops_per_token),
            "peak_memory_bytes": peak_memory_bytes(),
            "params": self.model.estimate.params,
            "size_bytes": self.model.estimate.size_bytes,
            "stage": self.model.stage,
            "mean_rank": mean_rank(self.model.plan),
            "gate_drift": self.model.engine.gate_drift(),
            **_prefixed(validation or {}),
        }
        seconds_left = self.unlogged.seconds_left(self.step)
        self.unlogged.clear()
        self.observers(StepLogged(figures, self.model.estimate.compression, seconds_left))

    def save(self) -> None:
        """Begins to save a checkpoint, whose record is the same on all processes. Collective.

        Waits for an earlier save. Raises DataError if files of the data have turned out to be damaged.
        """
        self.feed.data_check.raise_if_damaged()
        self.note_saved(is_needed=True)  # or nobody would hear that the save before this one has ended
        self._is_still_there()
        record = {
            "config": self.config.model_dump(mode="json"),
            "plan": write_plan(self.model.plan),
            "planned": write_plan(self.model.planned),
            "vocabulary": self.task.vocabulary,
            "cursor": vars(self.feed.batches.cursor(self.rows)),
            "wall_seconds": self.wall_seconds,
            "ranks": self.model.ranks and self.model.ranks.state(),
            "unlogged": None if self.watch.bad_in_a_row else self.unlogged.state(),
            "watch": self.watch.state(),
            "stop_early": self.patience.state(),
            "teacher": teacher_record(self.config, self.model.source.teacher),
            "passed_over": self.passed_over,
        }
        self.saves.begin(self.step, self.model.engine, record)

    def save_if_best(self) -> None:
        """With checkpoint.keep_best: begins to save the step if its validation has the lowest loss. Collective."""
        if self.saves.is_best(self.step):
            if self.saves.begun_step != self.step:
                self.save()
            self.saves.keep_best()

    def note_saved(self, is_needed: bool = False) -> None:
        """Notes whether a save has ended; waits for its end if `is_needed`. Collective. Raises CheckpointError."""
        try:
            self._note_saved(is_needed)
        except CheckpointError:
            if self._is_still_there():
                raise
            if is_needed:
                self.save()
                self._note_saved(is_needed)

    def _note_saved(self, is_needed: bool) -> None:
        saved = self.saves.note(is_needed)
        if saved is not None and self.processes.is_first:
            self.directory.note_saving()

    def finish(self, stop: StopSignal) -> None:
        """Validates once more and tells the observers the summary. Collective. Raises as `validate` does."""
        validation = self.validate(stop)
        if not self.processes.is_first:
            return
        self.saves.saver.prune()  # a better one may have become whole since the last save
        estimate, adaptation = self.model.estimate, self.model.adaptation(self.config.ranks.layers, self.directory)
        summary = {
            **_prefixed(validation),
            "step": self.step,
            "ended_by": self._ended_by,
            **({"best_step": self.saves.kept.best} if self.config.checkpoint.keep_best else {}),
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

    def close(self, mirror_seconds: float = 0.0) -> None:
        """Frees everything that takes memory. Waits for the mirror for `mirror_seconds`. Collective."""
        if self.profile is not None:
            self.profile.close()
        self.saves.close(mirror_seconds)
        self.feed.close()
        self.model.engine.close()

    @property
    def total_steps(self) -> int:
        return self.config.total_steps

    @property
    def _ended_by(self) -> str:
        """The key by which the run has ended."""
        if self.step < self.total_steps:
            return self.config.train.stop_early.described
        return "train.tokens" if self.config.train.steps is None else "train.steps"

    @property
    def tokens(self) -> int:
        return self.rows * self.config.row_tokens

    @property
    def wall_seconds(self) -> float:
        """Seconds that all starts of this run have spent up to now, each earlier one up to its last checkpoint."""
        return time.monotonic() - self.clock_zero

    def _is_still_there(self) -> bool:
        """False if somebody has removed the run's directory, which is then made anew. Collective."""
        is_there = self.directory.still_held(self.processes)
        if not is_there:
            self.processes.say(f"{self.directory.path} was removed; it is made anew, without what it held.")
            self._describe()
        return is_there

    def _has_logged(self) -> bool:
        """Whether an earlier start of the run logged the present step. Collective."""
        records = self.directory.read("metrics.jsonl") if self.processes.is_first else []
        return self.processes.from_first(any(record["step"] == self.step for record in records))

    @property
    def _norms_are_due(self) -> bool:
        """Whether `log.norms_every` is due at the next step."""
        every = self.config.log.norms_every
        return every > 0 and (self.step + 1) % every == 0

    def _describe(self) -> None:
        if self.processes.is_first:
            self.directory.open(self.config, self.processes.count, self.step)


def _prefixed(validation: dict[str, float | None]) -> dict[str, float | None]:
    return {f"val_{name}": figure for name, figure in validation.items()}
