"""Several corpora with one vocabulary, whose rows a run reads in given shares.

Shapes: B rows of a batch.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comera_dist.data.batches import Examples
from comera_dist.data.contents import Contents
from comera_dist.data.manifest import fingerprint
from comera_dist.data.order import Order
from comera_dist.errors import DataError

if TYPE_CHECKING:
    from comera_dist.data.tasks import Task


class MixedExamples:
    """The rows of several data sets, numbered one after another, with the order in which a run reads them."""

    def __init__(self, parts: Sequence[Examples], shares: Sequence[Fraction]):
        self._parts, self._shares = parts, shares
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def order(self, seed: int) -> Order:
        """Each data set gives its share of any number of rows, to less than a row."""
        return Order([len(part) for part in self._parts], self._shares, seed)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> NamedTuple:
        """The rows `row_B` in their order. None of them is FILLER."""
        part_B = np.searchsorted(self._ends, row_B, side="right")
        batches, places = [], []
        for index in np.unique(part_B).tolist():
            place = np.flatnonzero(part_B == index)
            part, first = self._parts[index], self._ends[index] - len(self._parts[index])
            batches.append(part.batch(row_B[place] - first, draw_B[place]))
            places.append(place)
        back_B = torch.from_numpy(np.argsort(np.concatenate(places)))
        batch: NamedTuple = type(batches[0])(*(torch.cat(tensors)[back_B] for tensors in zip(*batches, strict=True)))
        return batch


class Mixture:
    """The tasks of several corpora by name. `shares` are those of their rows in training, and sum to 1.

    It has everything of a `Task` but held-out rows and figures, which each of `tasks` has of its own. Raises DataError
    if the corpora differ in their vocabulary.
    """

    def __init__(self, tasks: "dict[str, Task[Any]]", shares: Sequence[Fraction]):
        self.tasks, self.shares = tasks, shares
        (first_name, first), *others = tasks.items()
        for name, task in others:
            _check_vocabulary(first_name, first, name, task)
        self.facts, self.vocabulary = first.facts, first.vocabulary
        parts = [[task.fingerprint, str(share)] for task, share in zip(tasks.values(), shares, strict=True)]
        self.fingerprint = fingerprint({"mixture": parts})
        files = {file: sha256 for task in tasks.values() for file, sha256 in task.contents.sha256.items()}
        self.contents = Contents(files, first.contents.remedy)

    def train(self) -> MixedExamples:
        return MixedExamples([task.train() for task in self.tasks.values()], self.shares)


def _check_vocabulary(first_name: str, first: "Task[Any]", name: str, task: "Task[Any]") -> None:
    wanted = first.vocabulary
    differing = [part for part, found in task.vocabulary.items() if found is None or found != wanted.get(part)]
    if differing:
        raise DataError(
            f"{name} differs in its {' and '.join(differing)} from {first_name}, and the corpora of data.mixture must "
            f"have the same; prepare {name} with the tokenizer, labels and dictionaries of {first_name}"
        )
