"""A run as one process holds it: what was opened for it, how far it is, and what can be done with it."""

import time
from contextlib import contextmanager

import torch

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.checkpoints.write import Saver
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate, bond_ranks, estimate, mean_rank
from comera_dist.costs.oversize import oversize_line
from comera_dist.data.batches import Cursor, TrainBatches, ValidationBatches
from comera_dist.data.prefetch import Prefetch
from comera_dist.data.tasks import open_task
from comera_dist.formats.plan import Plan, write_plan
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.ranks.shrink import rebalance, rebuild
from comera_dist.report.console import ranks_line, show_adaptation, show_estimate, step_line, summary_lines
from comera_dist.report.metrics import Metrics
from comera_dist.report.plots import draw_plots
from comera_dist.report.rank_report import adaptation_figures, layer_changes
from comera_dist.run.data_check import DataCheck
from comera_dist.run.evaluate import validate
from comera_dist.run.schedule import lr_fraction
from comera_dist.run.start import build_engine, find_start
from comera_dist.runtime.engine import Requests, StepResult
from comera_dist.runtime.guard import check_validation, seed_step
from comera_dist.runtime.memory import check_fits, peak_memory_bytes
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.reading import read_together
from comera_dist.storage.run_directory import RunDirectory

ROW_BYTES = 16  # of a token at the least: its id and its target, 64 bits each


class Session:
    """Opens corpus, checkpoint, model and logs of the run; `step` counts its finished optimizer steps. Collective."""

    def __init__(self, config: Config, processes: Processes, directory: RunDirectory):
        started = time.monotonic()
        self.config, self.processes, self.directory = config, processes, directory
        self.total_steps = config.total_steps
        self.task = open_task(config)
        self._data_check = DataCheck(self.task.contents, processes)
        self._open_batches()
        start = find_start(config, self.task, directory.checkpoints, processes)
        self._planned, checkpoint = start.planned, start.own
        self._saver = Saver(directory.checkpoints, config.checkpoint.keep, checkpoint)
        self._use_plan(start.plan)
        self._check_memory()
        self.engine = build_engine(config, start, processes)
        self.ranks = self._start_ranks(checkpoint)
        self.step, self._rows, earlier_seconds = 0, 0, 0.0
        if checkpoint is not None:
            self.step = checkpoint.manifest["step"]
            self._rows = self._batches.resume(Cursor(**checkpoint.run["cursor"]))
            earlier_seconds = checkpoint.run["wall_seconds"]
        self._clock_zero = started - earlier_seconds
        self._meter, self._validated_step = Meter(), None
        self.saved_step = self.step if checkpoint is not None else None
        self._saved_at = time.monotonic()
        self._metrics = self._open_log() if processes.is_first else None
        processes.say(f"Ready for step {self.step + 1} after {time.monotonic() - started:.1f} s.")

    def train_step(self, stop_requested: bool) -> StepResult:
        """One optimizer step. Collective. DataError on all processes when one cannot read its rows."""
        seed_step(self.config.run.seed, self.step, self.processes.index)
        self._lr = self.config.optim.lr * lr_fraction(self.config.schedule, self.step, self.total_steps)
        with self._meter:
            with self._meter.waiting():
                batches = read_together(lambda: self._prefetch.step(self._rows), self.processes)
            requests = Requests(stop_requested, self._save_is_overdue())
            result = self.engine.step(batches, self._lr, requests, self._pressure if self.ranks else None)
        self.step += 1
        self._rows += self.config.global_batch
        return result

    def adapt_ranks(self) -> None:
        """Where a sync is due: decides about ranks, and goes on with a resized model where that is decided. Collective.

        Raises RankDivergence where processes disagree.
        """
        if self.ranks is None or not self.ranks.is_due(self.step):
            return
        record, resize = self.ranks.sync(self.step)
        started = time.perf_counter()
        if resize.bonds:
            self._use_plan(resize.plan(self.plan))
            self.engine = rebuild(self.engine, self.config, self.plan, resize)
            record["rebuild_seconds"] = time.perf_counter() - started
        elif resize.balanced:
            rebalance(self.engine, resize)
        self.ranks.resized(self.engine)
        record |= {"tokens": self.tokens, "params": self.figures.params}
        if self._metrics is not None:
            self._metrics.log_ranks(record)
            print(ranks_line(record), flush=True)

    def is_due(self, every: int) -> bool:
        """At every `every`-th step (0: never) and at the last one."""
        return self.step == self.total_steps or (every > 0 and self.step % every == 0)

    def validate(self) -> dict[str, float]:
        """Figures of the validation split, computed once for a step. Collective.

        Raises TrainingError where the loss is not finite.
        """
        if self._validated_step != self.step:
            self._validation = validate(self.engine, self._validation_batches, self.task)
            self._validated_step = self.step
        check_validation(self._validation["loss"], self.step)
        return self._validation

    def log(self, result: StepResult, validation: dict[str, float] | None) -> None:
        """Writes a line of figures to the console, metrics.jsonl and W&B. Collective."""
        record = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": result.loss,
            "lr": self._lr,
            "grad_norm": result.grad_norm,
            "tokens_per_second": self.config.step_tokens / self._meter.seconds_a_step,
            "step_ms": 1000 * self._meter.seconds_a_step,
            "data_wait_fraction": self._meter.waited_fraction,
            "peak_memory_bytes": peak_memory_bytes(),
            "params": self.figures.params,
            "size_bytes": self.figures.size_bytes,
            "stage": self.ranks.stage if self.ranks else "fixed",
            "mean_rank": mean_rank(self.plan),
            "gate_drift": self.engine.gate_drift(),
        }
        if validation is not None:
            record |= {f"val_{name}": figure for name, figure in validation.items()}
        if self._metrics is not None:
            self._metrics.log(record)
            seconds_left = self._meter.seconds_a_step * (self.total_steps - self.step)
            print(step_line(record, self.config, seconds_left, self.figures.compression), flush=True)
        self._meter = Meter()

    def save(self) -> None:
        """Publishes a checkpoint. Collective. Nothing in its record belongs to one process.

        DataError where files of the data have turned out to be damaged.
        """
        self._data_check.raise_if_damaged()
        if not self.directory.still_held(self.processes):
            self.processes.say(f"{self.directory.path} was removed; it is made anew, without what it held.")
            if self.processes.is_first:
                self._describe()
        record = {
            "config": self.config.model_dump(mode="json"),
            "plan": write_plan(self.plan),
            "planned": write_plan(self._planned),
            "vocabulary": self.task.vocabulary,
            "cursor": vars(self._batches.cursor(self._rows)),
            "wandb_id": self.directory.facts().get("wandb_id"),
            "wall_seconds": self.wall_seconds,
            "ranks": self.ranks and self.ranks.state(),
        }
        self._saver.save(self.step, self.engine, record)
        self.saved_step, self._saved_at = self.step, time.monotonic()

    def finish(self) -> None:
        """Evaluates once more, writes the summary and the plots. Collective."""
        validation = self.validate()
        if self._metrics is None:
            return
        summary = {
            **{f"val_{name}": figure for name, figure in validation.items()},
            "params": self.figures.params,
            "dense_params": self.figures.dense_params,
            "compression": self.figures.compression,
            "tokens": self.tokens,
            "unit": self.config.unit,
            "wall_seconds": self.wall_seconds,
            "ranks": bond_ranks(self.plan),
        }
        if self.ranks is not None:
            summary["adaptation"] = self._report_adaptation()
        self.directory.finish(summary)
        self._metrics.finish(summary, self._draw_plots())
        print(summary_lines(summary, self.directory.path), flush=True)

    def close(self) -> None:
        """Lets go of what takes memory. Collective."""
        self._prefetch.close()
        self._data_check.close()
        self.engine.close()

    def close_log(self, in_haste: bool) -> None:
        """However the run has ended."""
        if self._metrics is not None:
            self._metrics.close(in_haste)

    @property
    def tokens(self) -> int:
        return self._rows * self.config.row_tokens

    @property
    def wall_seconds(self) -> float:
        """Seconds spent by all starts of this run, up to the last checkpoint of each."""
        return time.monotonic() - self._clock_zero

    def _use_plan(self, plan: Plan) -> None:
        self.plan, self.figures = plan, self._estimate(plan)

    def _estimate(self, plan: Plan) -> Estimate:
        tokens_per_forward = self._micro_batch * self.config.row_tokens
        return estimate(self.config, plan, self.processes.count, tokens_per_forward, self.processes.device.type)

    def _check_memory(self) -> None:
        """ConfigError where the run cannot be held, whatever else is in memory."""
        device, state = self.processes.device, self.figures.state_bytes_per_process
        check_fits("weights, gradients and the optimizer's state", state, device)
        rows = self.config.step_tokens * ROW_BYTES // self.processes.count
        check_fits("the rows of one step", rows, torch.device("cpu"))

    def _start_ranks(self, checkpoint: Checkpoint | None) -> RankAdaptation | None:
        if not self.config.ranks.adapt:
            return None
        ranks = RankAdaptation(self.config, self._planned, self._estimate(self._planned).params, self.engine)
        ranks.start(checkpoint and checkpoint.run.get("ranks"))
        return ranks

    def _report_adaptation(self) -> dict:
        """Shows what rank adaptation has changed; returns its figures for the summary."""
        planned, read = self._estimate(self._planned), self.directory.read
        figures = adaptation_figures(
            self.ranks.verdict(), planned, self.figures, read("metrics.jsonl"), read("ranks.jsonl")
        )
        layers = layer_changes(self._planned, self.plan, self.config.ranks.layers)
        show_adaptation(layers, planned, self.figures, figures, self.config.unit)
        return figures

    def _save_is_overdue(self) -> bool:
        minutes = self.config.checkpoint.every_minutes
        return minutes > 0 and time.monotonic() - self._saved_at >= 60 * minutes

    def _draw_plots(self) -> dict[str, str]:
        """Pictures are drawn from logs, which anybody may have changed: no run ends for their sake."""
        try:
            return draw_plots(self.directory, self.config.unit)
        except Exception as error:
            print(f"The plots cannot be drawn ({type(error).__name__}: {error}).", flush=True)
            return {}

    def _pressure(self, loss: torch.Tensor) -> torch.Tensor:
        return self.ranks.objective.pressure(loss, self.step)

    def _open_batches(self) -> None:
        config, processes = self.config, self.processes
        self._micro_batch = config.micro_batch(processes.count)
        self._batches = TrainBatches(
            self.task.train(),
            self.task.fingerprint,
            config.row_tokens,
            global_batch=config.global_batch,
            micro_batch=self._micro_batch,
            process_index=processes.index,
            num_processes=processes.count,
            seed=config.run.seed,
        )
        self._prefetch = Prefetch(self._batches.step, config.global_batch)
        self._validation_batches = ValidationBatches(
            self.task.held_out("valid"),
            self._micro_batch,
            processes.index,
            processes.count,
            config.eval.max_rows(config.row_tokens),
        )

    def _describe(self) -> None:
        self.directory.open(self.config, self.processes.count, self.step)

    def _open_log(self) -> Metrics:
        self._describe()
        self.directory.forget_after(self.step if self.step else -1)
        if self.step == 0:
            self.directory.append("ranks.jsonl", {"step": 0, "ranks": bond_ranks(self.plan)})
        show_estimate(self.config, self.figures, self.processes.count)
        if (line := oversize_line(self.config, self.plan)) is not None:
            print(line, flush=True)
        return Metrics(self.directory, self.config)


class Meter:
    """Time spent in steps since it was made: `with meter:` around each, and inside it, `with waiting():` for data."""

    def __init__(self):
        self._seconds, self._waited, self._steps = 0.0, 0.0, 0

    def __enter__(self):
        self._start = time.perf_counter()

    def __exit__(self, *exception):
        self._seconds += time.perf_counter() - self._start
        self._steps += 1

    @contextmanager
    def waiting(self):
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @property
    def waited_fraction(self) -> float:
        return self._waited / self._seconds

    @property
    def seconds_a_step(self) -> float:
        return self._seconds / self._steps
