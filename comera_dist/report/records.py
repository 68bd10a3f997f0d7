"""The records that observers of a run get, and how observers are called.

An observer is a function, or any callable object, of one record: a named tuple below. RunStarted comes first, then
StepLogged, RanksSynced and NormsMeasured as they occur, RunFinished if the run reaches its end, and RunEnded. A start
that resumes a run begins with RunStarted again. Observers are called on the first process only, so they may not
communicate with other processes. The training loop waits for them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate
from comera_dist.errors import first_line
from comera_dist.formats.plan import Plan
from comera_dist.report.rank_report import LayerChange
from comera_dist.storage.run_directory import RunDirectory


class RunStarted(NamedTuple):
    """The run is open and about to make its next step. Earlier starts made `step` optimizer steps."""

    config: Config
    directory: RunDirectory
    plan: Plan
    estimate: Estimate
    num_processes: int
    step: int


class StepLogged(NamedTuple):
    """The figures of a step at which `log.every` or a validation is due, as metrics.jsonl holds them.

    Among them are `step`, `loss` (nats per target), `lr`, `grad_norm`, `tokens_per_second`, `params`, and `val_loss`
    after a validation. `compression` is dense over stored parameters.
    """

    figures: dict[str, Any]
    compression: float
    seconds_left: float


class RanksSynced(NamedTuple):
    """The measurements and the decision of a sync of rank adaptation, as ranks.jsonl holds them."""

    figures: dict[str, Any]


class NormsMeasured(NamedTuple):
    """The norms of a step at which `log.norms_every` is due, as norms.jsonl holds them.

    `gradient`, `weight`, `update` and `update_ratio` have a number for each layer. Gradients are those of the mean loss
    over all processes, before clipping; weights are those after the step.
    """

    figures: dict[str, Any]


class AdaptationReport(NamedTuple):
    """The effect of rank adaptation, from the planned to the final model."""

    layers: list[LayerChange]
    planned: Estimate
    final: Estimate
    figures: dict[str, Any]  # `adaptation` of the summary


class RunFinished(NamedTuple):
    """The run has come to its end. `summary` is the content of summary.json."""

    summary: dict[str, Any]
    adaptation: AdaptationReport | None


class RunEnded(NamedTuple):
    """This start makes no further step. `in_haste`: it was stopped, or it failed."""

    in_haste: bool


Record = RunStarted | StepLogged | RanksSynced | NormsMeasured | RunFinished | RunEnded
Observer = Callable[[Record], None]


def numbers_of(figures: dict[str, Any]) -> dict[str, int | float]:
    """The figures that are numbers: others are words, lists, or ranks by layer."""
    return {name: figure for name, figure in figures.items() if isinstance(figure, int | float)}


def curves_of(record: RanksSynced | NormsMeasured) -> dict[str, int | float]:
    """The numbers of a sync by `ranks/<figure>`, or the norms by `norms/<quantity>/<layer>`."""
    if isinstance(record, RanksSynced):
        return {f"ranks/{name}": number for name, number in numbers_of(record.figures).items()}
    return {
        f"norms/{quantity}/{layer}": norm
        for quantity, norms in record.figures.items()
        if isinstance(norms, dict)
        for layer, norm in numbers_of(norms).items()
    }


class Observers:
    """Calls the observers of a run one after another. The other processes have an empty object.

    An error of one of `own`, the observers that every run has, ends the run. An error of one of `others` is printed
    once, and that observer is not called again: the run is worth more than its report.
    """

    def __init__(self, own: Sequence[Observer] = (), others: Sequence[Observer] = ()):
        self._own, self._others = own, list(others)

    def __call__(self, record: Record) -> None:
        for observer in self._own:
            observer(record)
        for observer in list(self._others):
            try:
                observer(record)
            except Exception as error:
                self._others.remove(observer)
                name = getattr(observer, "__qualname__", type(observer).__qualname__)
                print(
                    f"The observer {name} is called no more: {type(error).__name__}: {first_line(error)}; "
                    f"the run goes on without it.",
                    flush=True,
                )
