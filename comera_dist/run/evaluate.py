"""Figures of a trained model on held-out rows. Imports no DeepSpeed."""

import math
from pathlib import Path
from typing import Any

from comera_dist.config.tree import Evaluation
from comera_dist.data.batches import ValidationBatches
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, TrainingError
from comera_dist.formats.plan import Plan, matrix_size
from comera_dist.models.family import plan_model
from comera_dist.run.compatibility import check_vocabulary
from comera_dist.run.data_check import DataCheck
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.forward import AutocastModel, measure
from comera_dist.runtime.processes import Processes


def evaluate_run(
    run: Path, processes: Processes, step: int | None, corpus: Path | None, split: str, max_tokens: int | None
) -> dict[str, Any]:
    """The figures of a run's checkpoint (None: the newest) on a split of its corpus or of `corpus`. Collective.

    At most `max_tokens` tokens are read (None: the whole split). Raises ComeraError.
    """
    trained = load_trained(run, processes, step)
    figures = evaluate(trained, processes, corpus or trained.config.data.corpus, split, max_tokens)
    return {"run": str(run), "step": trained.checkpoint.manifest["step"], **figures}


def evaluate(
    trained: Trained, processes: Processes, corpus: Path, split: str, max_tokens: int | None
) -> dict[str, Any]:
    """The figures of a trained model on a split of `corpus`. Collective. Raises ComeraError."""
    config = trained.config.model_copy(update={"data": trained.config.data.model_copy(update={"corpus": corpus})})
    task = open_task(config)
    data_check = DataCheck(task.contents, processes)
    _check_fits(plan_model(config, task.facts), trained.plan, corpus)
    check_vocabulary(trained.checkpoint, task, corpus, processes)
    batches = ValidationBatches(
        task.held_out(split),
        # The training batch need not divide by this number of processes, because batches are filled up.
        config.train.micro_batch or max(1, config.global_batch // processes.count),
        processes.index,
        processes.count,
        Evaluation(max_tokens=max_tokens).max_rows(config.row_tokens),
    )
    model = AutocastModel(trained.model, config.train.precision).eval()
    measured = measure(model, batches, processes)
    data_check.complete()
    figures = task.figures(measured, split)
    loss = figures["loss"]
    if loss is None or not math.isfinite(loss):
        raise TrainingError(
            f"the loss on split {split!r} is {loss}, expected a finite number: the weights have diverged; "
            f"name an earlier checkpoint with --step, or train anew with a lower optim.lr"
        )
    return {"corpus": str(corpus), "split": split, "targets": int(measured["targets"]), **figures}


def _check_fits(wanted: Plan, plan: Plan, corpus: Path) -> None:
    """CheckpointError if the data need matrices of other sizes than the model has."""
    for name in wanted | plan:
        here, there = matrix_size(wanted, name), matrix_size(plan, name)
        if here != there:
            raise CheckpointError(
                f"{corpus} makes {name} {here}, and the model has {there}; prepare the data with the tokenizer and "
                f"settings of the run's own"
            )
