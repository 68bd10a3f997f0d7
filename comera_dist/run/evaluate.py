"""Figures of a trained model on held-out rows. Imports no DeepSpeed."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from comera_dist.config.tree import Evaluation
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, TrainingError
from comera_dist.formats.plan import Plan, matrix_size
from comera_dist.models.family import plan_model
from comera_dist.run.compatibility import check_vocabulary
from comera_dist.run.data_check import DataCheck
from comera_dist.run.held_out import HeldOut
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.forward import AutocastModel, measure
from comera_dist.runtime.processes import Processes


def evaluate_run(
    run: Path, processes: Processes, step: int | None, corpus: Path | None, split: str, max_tokens: int | None
) -> dict[str, Any]:
    """The figures of a run's checkpoint (None: the newest) on a split of its data or of `corpus`. Collective.

    At most `max_tokens` tokens are read (None: the whole split). Raises ComeraError.
    """
    trained = load_trained(run, processes, step)
    figures = evaluate(trained, processes, corpus, split, max_tokens)
    return {"run": str(run), "step": trained.checkpoint.manifest["step"], **figures}


def evaluate(
    trained: Trained, processes: Processes, corpus: Path | None, split: str, max_tokens: int | None
) -> dict[str, Any]:
    """The figures of a trained model on a split of `corpus` (None: of its data). Collective. Raises ComeraError."""
    return evaluate_split(trained, processes, open_split(trained, processes, corpus, split, max_tokens))


class OpenSplit(NamedTuple):
    """The rows of a split of some data, which `check` goes on hashing."""

    corpus: str
    name: str
    rows: HeldOut
    check: DataCheck


def open_split(
    trained: Trained, processes: Processes, corpus: Path | None, name: str, max_tokens: int | None
) -> OpenSplit:
    """A split of `corpus` (None: of the data of the run) for its model; the arguments are those of `evaluate_run`.

    Collective. Raises ComeraError if the data do not fit the model.
    """
    data = trained.config.data if corpus is None else trained.config.data.of_corpus(corpus)
    config = trained.config.model_copy(update={"data": data})
    task = open_task(config)
    data_check = DataCheck(task.contents, processes)
    _check_fits(plan_model(config, task.facts), trained.plan, data.described)
    check_vocabulary(trained.checkpoint, task, data.described, processes)
    max_rows = Evaluation(max_tokens=max_tokens).max_rows(config.row_tokens)
    return OpenSplit(data.described, name, HeldOut(task, name, trained.micro_batch, processes, max_rows), data_check)


def evaluate_split(trained: Trained, processes: Processes, split: OpenSplit) -> dict[str, Any]:
    """The figures of a trained model on an opened split. Collective. Raises ComeraError."""
    model = AutocastModel(trained.model, trained.config.train.precision).eval()
    figures, targets = split.rows.figures(lambda batches: measure(model, batches, processes))
    split.check.complete()
    check_finite(figures["loss"], f"split {split.name!r}")
    return {"corpus": split.corpus, "split": split.name, "targets": targets, **figures}


def check_finite(loss: float | None, place: str) -> None:
    """TrainingError if the loss on `place` is not a finite number."""
    if loss is None or not math.isfinite(loss):
        raise TrainingError(
            f"the loss on {place} is {loss}, expected a finite number: the weights have diverged; name an earlier "
            f"checkpoint with --step, or train anew with a lower optim.lr"
        )


def _check_fits(wanted: Plan, plan: Plan, corpus: str) -> None:
    """CheckpointError if the data need matrices of other sizes than the model has."""
    for name in wanted | plan:
        here, there = matrix_size(wanted, name), matrix_size(plan, name)
        if here != there:
            raise CheckpointError(
                f"{corpus} makes {name} {here}, and the model has {there}; prepare the data with the tokenizer and "
                f"settings of the run's own"
            )
