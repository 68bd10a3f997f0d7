"""The figures of a model on a held-out split, over all processes: of each corpus where a run has several."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

from comera_dist.data.batches import ValidationBatches
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import StopRequested
from comera_dist.runtime.endings import StopSignal
from comera_dist.runtime.processes import Processes

Figures = dict[str, float | None]  # None: undefined on these rows
Measure = Callable[[Iterable[NamedTuple]], dict[str, Any]]  # of the engine, or of runtime.forward


class HeldOut:
    """A split of the data of `task` in batches of `batch_size` rows on each process.

    At most `max_rows` rows are read, of a mixture in the shares of its corpora, and at least one of each.
    """

    def __init__(
        self, task: Task[Any] | Mixture, split: str, batch_size: int, processes: Processes, max_rows: int | None
    ):
        self._split, self._is_mixture = split, isinstance(task, Mixture)
        self._tasks = task.tasks if isinstance(task, Mixture) else {"": task}
        self._shares = task.shares if isinstance(task, Mixture) else [Fraction(1)]
        self._batches = [
            ValidationBatches(
                part.held_out(split),
                batch_size,
                processes.index,
                processes.count,
                max_rows and max(1, int(max_rows * share)),
            )
            for part, share in zip(self._tasks.values(), self._shares, strict=True)
        ]

    def batches(self) -> Iterator[NamedTuple]:
        """The batches of this process, those of a mixture corpus by corpus."""
        return chain.from_iterable(self._batches)

    def figures(self, measure: Measure) -> tuple[Figures, int]:
        """The task's figures, and the number of targets. Collective.

        The figures of a mixture are the means over its corpora in their shares, and after them those of each corpus, as
        `loss/name`.
        """
        measured = [measure(batches) for batches in self._batches]
        targets = sum(int(sums["targets"]) for sums in measured)
        found = [task.figures(sums, self._split) for task, sums in zip(self._tasks.values(), measured, strict=True)]
        if not self._is_mixture:
            return found[0], targets
        of_each = {f"{key}/{name}": part[key] for name, part in zip(self._tasks, found, strict=True) for key in part}
        return _means(found, self._shares) | of_each, targets


def _means(found: Sequence[Figures], shares: Sequence[Fraction]) -> Figures:
    """The mean of each figure; None if it is undefined for a corpus."""
    means: Figures = {}
    for key in found[0]:
        values = [figures[key] for figures in found]
        known = [share * value for share, value in zip(shares, values, strict=True) if value is not None]
        means[key] = sum(known) if len(known) == len(values) else None
    return means


def until_stop(batches: Iterable[NamedTuple], stop: StopSignal) -> Iterator[NamedTuple]:
    """The `batches`; raises StopRequested in place of the next one if this process is asked to stop."""
    for batch in batches:
        if stop.requested:
            raise StopRequested(f"stopped by {stop.reason} during a validation; start the same command again to go on")
        yield batch
