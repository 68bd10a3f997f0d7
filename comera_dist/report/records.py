"""What observers of a run are called with, and how they are called.

An observer is a function (or an object that can be called) with one argument, a record: one of the named tuples below,
in the order RunStarted, then StepLogged and RanksSynced as they come, RunFinished where the run reaches its end, and
RunEnded. A start that resumes a run begins with RunStarted again. Observers are called on the first process only, so
they make no collectives; the training loop waits for them.
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
    """The run is open and makes its next step soon. `step` optimizer steps were made by earlier starts."""

    config: Config
    directory: RunDirectory
    plan: Plan
    estimate: Estimate
    num_processes: int
    step: int


class StepLogged(NamedTuple):
    """The figures of a step at which `log.every` or a validation is due, as metrics.jsonl holds them.

    `figures` has among others `step`, `loss` (nats per target), `lr`, `grad_norm`, `tokens_per_second`, `params`, and
    after a validation `val_loss`. `compression` is dense over stored parameters.
    """

    figures: dict[str, Any]
    compression: float
    seconds_left: float


class RanksSynced(NamedTuple):
    """What a sync of rank adaptation has measured and decided, as ranks.jsonl holds it."""

    figures: dict[str, Any]


class AdaptationReport(NamedTuple):
    """What rank adaptation has changed from the planned to the final model."""

    layers: list[LayerChange]
    planned: Estimate
    final: Estimate
    figures: dict[str, Any]  # `adaptation` of the summary


class RunFinished(NamedTuple):
    """The run has made all of its steps. `summary` is what summary.json holds."""

    summary: dict[str, Any]
    adaptation: AdaptationReport | None


class RunEnded(NamedTuple):
    """This start makes no further step, however it ended; `in_haste` where it was stopped or failed."""

    in_haste: bool


Record = RunStarted | StepLogged | RanksSynced | RunFinished | RunEnded
Observer = Callable[[Record], None]


class Observers:
    """Calls the observers of a run one after another; none on other processes than the first.

    An error of one of `own`, the observers that every run has, ends the run. An error of one of `others` is said once,
    and that observer is called no more: the run is worth more than its report.
    """

    def __init__(self, own: Sequence[Observer] = (), others: Sequence[Observer] = ()):
        self._own, self._others = list(own), list(others)

    def __call__(self, record: Record) -> None:
        for observer in self._own:
            observer(record)
        for observer in list(self._others):
            try:
                observer(record)
            except Exception as error:
                self._others.remove(observer)
                print(
                    f"The observer {_name(observer)} is called no more: {type(error).__name__}: {first_line(error)}; "
                    f"the run goes on without it.",
                    flush=True,
                )


def _name(observer: Observer) -> str:
    return getattr(observer, "__qualname__", type(observer).__qualname__)
