"""The order in which a run reads its tokens: a pure function of (seed, global sequence number).

Legend: B sequences of a micro batch, S tokens of a sequence, W windows of a split. Training window w holds
tokens w*S .. w*S+S (S inputs and, one later, S targets). Sequence number g of a run is window permute(g % W)
of epoch g // W.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch

from comera_dist.data.permutation import permute
from comera_dist.data.shards import TokenSplit
from comera_dist.errors import ConfigError, DataError

IGNORED_TARGET = -100


class Batch(NamedTuple):
    inputs_BS: torch.LongTensor
    targets_BS: torch.LongTensor


@dataclass(frozen=True)
class Cursor:
    """How far a run has read: nothing per process, so any number of processes can go on from it."""

    seed: int
    epoch: int
    tokens: int
    fingerprint: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Cursor":
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise DataError(f"The data cursor of the checkpoint cannot be read ({error}).") from error


class TrainBatches:
    """This process's share of each step. The micro batches of a step, read process by process within micro
    batch by micro batch, are the same sequences in the same order for every `num_processes` and
    `micro_batch`.

    ConfigError when the batch does not divide; DataError when the split holds no whole window.
    """

    def __init__(
        self,
        split: TokenSplit,
        fingerprint: str,
        seq_len: int,
        global_batch: int,
        micro_batch: int,
        process_index: int,
        num_processes: int,
        seed: int,
    ):
        _check_divides(global_batch, micro_batch, num_processes)
        self.windows = _count_windows(split, seq_len)
        self._split, self._fingerprint, self._seed, self._seq_len = split, fingerprint, seed, seq_len
        self._micro_batch, self._stride = micro_batch, micro_batch * num_processes
        self._first = process_index * micro_batch
        self._micro_batches = global_batch // self._stride

    def step(self, sequences_done: int) -> list[Batch]:
        """This process's micro batches of the step that starts after `sequences_done` sequences of all."""
        first = sequences_done + self._first
        return [self._batch(first + index * self._stride) for index in range(self._micro_batches)]

    def cursor(self, sequences_done: int) -> Cursor:
        tokens = sequences_done * self._seq_len
        return Cursor(self._seed, sequences_done // self.windows, tokens, self._fingerprint)

    def resume(self, cursor: Cursor) -> int:
        """`sequences_done` at `cursor`; DataError when it is of another corpus, seed or sequence length."""
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
        sequences_done, rest = divmod(cursor.tokens, self._seq_len)
        if rest or cursor.epoch != sequences_done // self.windows:
            raise DataError(
                f"The checkpoint's {cursor.tokens} tokens in epoch {cursor.epoch} are not whole "
                f"sequences of {self._seq_len}; set that of the checkpoint, or start a new run."
            )
        return sequences_done

    def _batch(self, first_sequence: int) -> Batch:
        starts_B = self._window_indices(first_sequence) * self._seq_len
        rows = [self._split.read(int(start), int(start) + self._seq_len + 1) for start in starts_B]
        tokens_BT = torch.from_numpy(np.stack(rows))
        return Batch(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())

    def _window_indices(self, first_sequence: int) -> np.ndarray:
        sequence_B = np.arange(first_sequence, first_sequence + self._micro_batch)
        epoch_B, position_B = np.divmod(sequence_B, self.windows)
        window_B = np.empty_like(sequence_B)
        for epoch in np.unique(epoch_B):  # one, or two where an epoch ends within the batch
            inside_B = epoch_B == epoch
            window_B[inside_B] = permute(position_B[inside_B], self.windows, key=(self._seed, int(epoch)))
        return window_B


class ValidationBatches:
    """The split in order, every token the target of exactly one place (the first one is predicted from EOS).

    Iterating gives this process's batches, all of shape (batch_size, seq_len). Every process gets the same
    number of them: what is missing is padded with target -100, so sum losses and counts over processes, then
    divide. `max_tokens` reads an evenly spread subset of the windows instead; `tokens` says how many targets
    count in all.
    """

    def __init__(
        self,
        split: TokenSplit,
        seq_len: int,
        batch_size: int,
        process_index: int,
        num_processes: int,
        max_tokens: int | None = None,
    ):
        if not split.tokens:
            raise DataError(
                f"Split {split.name!r} of the corpus is empty; tokenize it with --valid-source or a larger "
                "--valid-fraction."
            )
        self._split, self._seq_len, self._batch_size = split, seq_len, batch_size
        self._process_index, self._num_processes = process_index, num_processes
        self._windows = _spread(-(-split.tokens // seq_len), max_tokens, seq_len)
        self.tokens = sum(self._target_count(int(window)) for window in self._windows)

    def __len__(self) -> int:
        return -(-len(self._windows) // (self._batch_size * self._num_processes))

    def __iter__(self) -> Iterator[Batch]:
        stride = self._batch_size * self._num_processes
        for index in range(len(self)):
            first = index * stride + self._process_index * self._batch_size
            yield self._batch(self._windows[first : first + self._batch_size])

    def _target_count(self, window: int) -> int:
        return min(self._seq_len, self._split.tokens - window * self._seq_len)

    def _batch(self, windows: np.ndarray) -> Batch:
        shape = (self._batch_size, self._seq_len)
        inputs_BS = torch.full(shape, self._split.eos_id, dtype=torch.long)
        targets_BS = torch.full(shape, IGNORED_TARGET, dtype=torch.long)
        for row, window in enumerate(windows):
            start, count = int(window) * self._seq_len, self._target_count(int(window))
            tokens_T = torch.from_numpy(self._split.read(max(start - 1, 0), start + count))
            targets_BS[row, :count] = tokens_T[-count:]
            inputs_BS[row, 1 if start == 0 else 0 : count] = tokens_T[:-1]
        return Batch(inputs_BS, targets_BS)


def _spread(windows: int, max_tokens: int | None, seq_len: int) -> np.ndarray:
    wanted = windows if max_tokens is None else min(windows, max(1, max_tokens // seq_len))
    return np.arange(wanted) * windows // wanted


def _count_windows(split: TokenSplit, seq_len: int) -> int:
    windows = (split.tokens - 1) // seq_len
    if windows < 1:
        raise DataError(
            f"Split {split.name!r} has {split.tokens} tokens, fewer than one sequence of {seq_len} + 1; "
            "use a larger corpus or a shorter sequence."
        )
    return windows


def _check_divides(global_batch: int, micro_batch: int, num_processes: int) -> None:
    per_round = micro_batch * num_processes
    if global_batch < 1 or global_batch % per_round:
        below = max(global_batch // per_round, 1) * per_round
        raise ConfigError(
            f"A global batch of {global_batch} sequences is not a multiple of micro_batch x processes = "
            f"{per_round}; nearest: {below} or {below + per_round}."
        )
