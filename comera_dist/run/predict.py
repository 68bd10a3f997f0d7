"""Scores rows of a file with a trained model. Imports no DeepSpeed.

Shapes: B rows of a batch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from comera_dist.data.tasks import open_task
from comera_dist.errors import ConfigError, TrainingError
from comera_dist.models.base import ScoresRows, WritesText
from comera_dist.run.compatibility import check_vocabulary
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.forward import compute_precision
from comera_dist.runtime.processes import Processes


class InputRows(NamedTuple):
    """Some rows of a file: the number of each in the file, and the arrays of a batch without its targets."""

    numbers: list[int]
    inputs: tuple[NDArray[Any], ...]


class RowFile(Protocol):
    """A file of rows to score, as data_prep/scoring/ opens it."""

    def batches(self, size: int) -> Iterator[InputRows]:
        """All rows that can be read, in order, at most `size` at once."""

    def notes(self) -> list[str]:
        """Lines about the whole file, complete after `batches`."""

    def record(self, number: int, probabilities: list[float]) -> dict[str, Any]:
        """The answer for row `number`: the columns of `ScoresRows.probabilities` under their names."""


def open_scorer(run: Path, processes: Processes, step: int | None, corpus: Path | None) -> Trained:
    """The model of a run's checkpoint (None: the newest), with the data in `corpus` (None: those of the run).

    Raises ConfigError for a model that scores no rows, and DataError for data of another vocabulary.
    """
    trained = load_trained(run, processes, step)
    if not isinstance(trained.model, ScoresRows):
        remedy = "continue texts with launch/generate.py" if isinstance(trained.model, WritesText) else None
        raise ConfigError(
            f"{run} is a run of model.kind = {trained.config.model.kind} that gives rows no probabilities; "
            f"{remedy or 'measure it with launch/evaluate.py'}, or name a run of a classifier or a DLRM"
        )
    data = trained.config.data.of_corpus(corpus or trained.config.data.folders[0])
    config = trained.config.model_copy(update={"data": data})
    check_vocabulary(trained.checkpoint, open_task(config), data.described, processes)
    return Trained(config, trained.plan, trained.checkpoint, trained.model)


@torch.no_grad()
def predict(trained: Trained, rows: RowFile) -> Iterator[dict[str, Any]]:
    """The record of each row of a file. Raises TrainingError if a probability is not finite."""
    config, model = trained.config, trained.model
    assert isinstance(model, ScoresRows), "open_scorer refuses others"
    device = next(trained.model.parameters()).device
    for numbers, inputs in rows.batches(trained.micro_batch):
        with compute_precision(device, config.train.precision):
            scores_BC = model.probabilities(*(torch.from_numpy(array).to(device) for array in inputs))
        if not bool(scores_BC.isfinite().all()):
            raise TrainingError(
                "a probability is not finite, because the weights have diverged; name an earlier checkpoint with "
                "--step, or train anew with a lower optim.lr"
            )
        yield from map(rows.record, numbers, scores_BC.tolist())
