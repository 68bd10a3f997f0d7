"""The order in which a run reads its rows: a pure function of (seed, global row number).

Legend: B rows of a micro batch. A row is a window of text, a pair of texts or a click; row number g of a run is
row permute(g % rows) of epoch g // rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from comera_dist.data.permutation import permute
from comera_dist.errors import ConfigError, DataError

FILLER = -1  # in place of a row's number: a row that fills up a batch and counts nothing


class Examples(Protocol):
    """The rows of one split.

    A batch is a NamedTuple of tensors that the model's forward takes in this order, targets last: integers, of which
    those that are IGNORED_TARGET count nothing.
    """

    def __len__(self) -> int: ...

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> NamedTuple:
        """The rows `row_B` (FILLER: one without targets); what is random about row b follows from draw_B[b] alone."""


@dataclass(frozen=True)
class Cursor:
    """How far a run has read: nothing per process, so any number of processes can go on from it."""

    seed: int
    epoch: int
    tokens: int
    fingerprint: str


class TrainBatches:
    """This process's share of each step. The micro batches of a step, read process by process within micro
    batch by micro batch, are the same rows in the same order for every `num_processes` and `micro_batch`.

    `row_tokens` is what a row counts for in the cursor. ConfigError when the batch does not divide.
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
        _check_divides(global_batch, micro_batch, num_processes)
        self._examples, self._fingerprint, self._seed, self._row_tokens = examples, fingerprint, seed, row_tokens
        self._micro_batch, self._stride = micro_batch, micro_batch * num_processes
        self._first = process_index * micro_batch
        self._micro_batches = global_batch // self._stride

    def step(self, rows_done: int) -> list[NamedTuple]:
        """This process's micro batches of the step that starts after `rows_done` rows of all."""
        first = rows_done + self._first
        return [self._batch(first + index * self._stride) for index in range(self._micro_batches)]

    def cursor(self, rows_done: int) -> Cursor:
        return Cursor(self._seed, rows_done // len(self._examples), rows_done * self._row_tokens, self._fingerprint)

    def resume(self, cursor: Cursor) -> int:
        """`rows_done` at `cursor`; DataError when it is of another corpus, seed or sequence length."""
        if cursor.fingerprint != self._fingerprint:
            raise DataError(
                f"The checkpoint was trained on corpus {cursor.fingerprint[:12]}, this run reads "
                f"{self._fingerprint[:12]}; name the corpus of the checkpoint, or start a new run."
            )
        if cursor.seed != self._seed:
            raise DataError(
                f"The checkpoint's data order has seed {cursor.seed}, this run has {self._seed}; "
                f"set the seed to {cursor.seed}, or start a new run."
            )
        rows_done, rest = divmod(cursor.tokens, self._row_tokens)
        if rest or cursor.epoch != rows_done // len(self._examples):
            raise DataError(
                f"The checkpoint's {cursor.tokens} tokens in epoch {cursor.epoch} are not whole "
                f"sequences of {self._row_tokens}; set that of the checkpoint, or start a new run."
            )
        return rows_done

    def _batch(self, first_row: int) -> NamedTuple:
        draw_B = np.arange(first_row, first_row + self._micro_batch)
        epoch_B, position_B = np.divmod(draw_B, len(self._examples))
        row_B = np.empty_like(draw_B)
        for epoch in np.unique(epoch_B):  # one, or two where an epoch ends within the batch
            inside_B = epoch_B == epoch
            row_B[inside_B] = permute(position_B[inside_B], len(self._examples), key=(self._seed, int(epoch)))
        return self._examples.batch(row_B, draw_B)


class ValidationBatches:
    """This process's batches of a split in order, all of `batch_size` rows.

    Every process gets the same number of them: what is missing is FILLER, so sum losses and counts over processes, then
    divide. `max_rows` reads an evenly spread subset instead.
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
        self._process_index, self._num_processes = process_index, num_processes
        wanted = len(examples) if max_rows is None else min(len(examples), max(1, max_rows))
        self._rows = np.arange(wanted) * len(examples) // wanted

    def __len__(self) -> int:
        return -(-len(self._rows) // (self._batch_size * self._num_processes))

    def __iter__(self) -> Iterator[NamedTuple]:
        stride = self._batch_size * self._num_processes
        for index in range(len(self)):
            first = index * stride + self._process_index * self._batch_size
            row_B = np.full(self._batch_size, FILLER)
            chosen = self._rows[first : first + self._batch_size]
            row_B[: len(chosen)] = chosen
            # A row has the same draw at every validation.
            yield self._examples.batch(row_B, row_B)


def _check_divides(global_batch: int, micro_batch: int, num_processes: int) -> None:
    per_round = micro_batch * num_processes
    if global_batch < 1 or global_batch % per_round:
        below = max(global_batch // per_round, 1) * per_round
        raise ConfigError(
            f"A global batch of {global_batch} sequences is not a multiple of micro_batch x processes = "
            f"{per_round}; nearest: {below} or {below + per_round}."
        )
