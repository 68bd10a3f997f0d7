"""The batches of a run: this process's share of every training step, and those of held-out rows.

Shapes: B rows of a micro batch, R rows of a subset.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.order import Order
from comera_dist.errors import ConfigError, DataError

FILLER = -1  # stands for a row's number where a batch is filled up: this row has no targets, so it counts nothing


class Examples(Protocol):
    """The rows of one split."""

    def __len__(self) -> int: ...

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> NamedTuple:
        """Tensors of the rows `row_B`, in the order in which the model's forward takes them, targets last.

        A row FILLER has IGNORED_TARGET in place of targets. Everything random in row b is a function of draw_B[b].
        """


@runtime_checkable
class Ordered(Protocol):
    """Rows with an order of their own, as those of a mixture."""

    def order(self, seed: int) -> Order: ...


class Subset:
    """The rows `row_R` of `examples`, numbered from 0."""

    def __init__(self, examples: Examples, row_R: NDArray[np.int64]):
        self._examples, self._rows = examples, row_R

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> NamedTuple:
        return self._examples.batch(np.where(row_B == FILLER, FILLER, self._rows[row_B]), draw_B)


@dataclass(frozen=True)
class Cursor:
    """How far a run has read. It says nothing about processes, so any number of them can resume from it."""

    seed: int
    epoch: int
    tokens: int
    fingerprint: str

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Cursor":
        """The cursor that a checkpoint holds. A later version may have added keys."""
        return cls(**{key.name: record[key.name] for key in fields(cls)})


class TrainBatches:
    """This process's share of every training step.

    All micro batches of a step, ordered by micro batch and then by process, hold the same rows in the same order for
    every `num_processes` and `micro_batch`. `row_tokens` is what one row adds to the cursor's `tokens`.

    Raises ConfigError if `global_batch` is not a multiple of `micro_batch` × `num_processes`.
    """

    def __init__(
        self,
        examples: Examples,
        fingerprint: str,
        row_tokens: int,
        global_batch: int,
        micro_batch: int,
        process_index: int,
        num_processes: int,
        seed: int,
    ):
        self._examples, self._fingerprint, self._seed, self._row_tokens = examples, fingerprint, seed, row_tokens
        alone = [len(examples)], [Fraction(1)]
        self._order = examples.order(seed) if isinstance(examples, Ordered) else Order(*alone, seed)
        self._micro_batch, self._stride = micro_batch, micro_batch * num_processes
        self._first, self._global_batch = process_index * micro_batch, global_batch
        if global_batch < 1 or global_batch % self._stride:
            below = max(global_batch // self._stride, 1) * self._stride
            raise ConfigError(
                f"a global batch of {global_batch} sequences is not a multiple of micro_batch x processes = "
                f"{self._stride}; the nearest are {below} and {below + self._stride}"
            )

    def step(self, rows_done: int, rows: int | None = None) -> list[NamedTuple]:
        """This process's micro batches of the step that starts when all processes have read `rows_done` rows.

        The step reads `rows` rows, a multiple of `micro_batch` × `num_processes` (default: `global_batch`).
        """
        starts = range(rows_done + self._first, rows_done + (rows or self._global_batch), self._stride)
        return [self._batch(first_row) for first_row in starts]

    def cursor(self, rows_done: int) -> Cursor:
        return Cursor(self._seed, self._order.epochs(rows_done), rows_done * self._row_tokens, self._fingerprint)

    def resume(self, cursor: Cursor) -> int:
        """`rows_done` at `cursor`. Raises DataError if it is from another corpus, seed or sequence length."""
        if cursor.fingerprint != self._fingerprint:
            raise DataError(
                f"the checkpoint was trained on corpus {cursor.fingerprint[:12]}, this run reads "
                f"{self._fingerprint[:12]}; name the corpus of the checkpoint, or its mixture "
                f"with the same weights, or start a new run"
            )
        if cursor.seed != self._seed:
            raise DataError(
                f"the checkpoint's data order has seed {cursor.seed}, this run has {self._seed}; "
                f"set the seed to {cursor.seed}, or start a new run"
            )
        rows_done, rest = divmod(cursor.tokens, self._row_tokens)
        if rest or cursor.epoch != self._order.epochs(rows_done):
            raise DataError(
                f"the checkpoint's {cursor.tokens} tokens in epoch {cursor.epoch} are not whole sequences of "
                f"{self._row_tokens}; set the sequence length of the checkpoint, or start a new run"
            )
        return rows_done

    def _batch(self, first_row: int) -> NamedTuple:
        draw_B = np.arange(first_row, first_row + self._micro_batch)
        return self._examples.batch(self._order.rows(draw_B), draw_B)


class ValidationBatches:
    """This process's batches of a split in order, each of `batch_size` rows.

    Every process gets the same number of batches, filled up with FILLER: sum losses and counts over the processes,
    then divide. `max_rows` reads an evenly spread subset.
    """

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        process_index: int,
        num_processes: int,
        max_rows: int | None = None,
    ):
        self._examples, self._batch_size = examples, batch_size
        self._first, self._stride = process_index * batch_size, num_processes * batch_size
        wanted = len(examples) if max_rows is None else min(len(examples), max(1, max_rows))
        self._rows = np.arange(wanted) * len(examples) // wanted

    def __len__(self) -> int:
        return -(-len(self._rows) // self._stride)

    def __iter__(self) -> Iterator[NamedTuple]:
        for first in range(self._first, len(self) * self._stride, self._stride):
            row_B = np.full(self._batch_size, FILLER)
            chosen = self._rows[first : first + self._batch_size]
            row_B[: len(chosen)] = chosen
            # The draw is the row itself, so that every validation hides the same words.
            yield self._examples.batch(row_B, row_B)
