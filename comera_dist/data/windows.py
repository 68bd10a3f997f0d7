"""Windows of a tokenized corpus as rows of batches.

Shapes: B sequences of a batch, S tokens of a sequence, T tokens read.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comera_dist.data.batches import FILLER
from comera_dist.data.token_split import TokenSplit
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET


class TextBatch(NamedTuple):
    inputs_BS: Tensor
    targets_BS: Tensor


class TrainWindows:
    """Disjoint windows of a split. Window w reads tokens w·S .. w·S + S: S inputs and, one place later, S targets.

    Raises DataError if the split holds no whole window.
    """

    def __init__(self, split: TokenSplit, seq_len: int):
        self._split, self._seq_len, self._windows = split, seq_len, (split.tokens - 1) // seq_len
        if self._windows < 1:
            raise DataError(
                f"split {split.name!r} has {split.tokens} tokens, fewer than one sequence of {seq_len} + 1; "
                "use a larger corpus or a shorter sequence"
            )

    def __len__(self) -> int:
        return self._windows

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> TextBatch:
        """The windows `row_B`; nothing in them is random."""
        starts = (row_B * self._seq_len).tolist()
        tokens_BT = torch.from_numpy(np.stack([self._split.read(at, at + self._seq_len + 1) for at in starts]))
        return TextBatch(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())


class ValidationWindows:
    """The split in order. Every token is the target of exactly one place; the first one is predicted from EOS.

    The last window is filled up with IGNORED_TARGET.
    """

    def __init__(self, split: TokenSplit, seq_len: int):
        if not split.tokens:
            raise DataError(
                f"split {split.name!r} of the corpus is empty; tokenize it with --valid-source or a larger "
                "--valid-fraction"
            )
        self._split, self._seq_len = split, seq_len

    def __len__(self) -> int:
        return -(-self._split.tokens // self._seq_len)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> TextBatch:
        """The windows `row_B`. A window FILLER has no target."""
        shape = (len(row_B), self._seq_len)
        inputs_BS = torch.full(shape, self._split.eos_id, dtype=torch.long)
        targets_BS = torch.full(shape, IGNORED_TARGET, dtype=torch.long)
        for row, window in enumerate(row_B.tolist()):
            if window == FILLER:
                continue
            start, stop = window * self._seq_len, min((window + 1) * self._seq_len, self._split.tokens)
            tokens_T = torch.from_numpy(self._split.read(max(start - 1, 0), stop))
            targets_BS[row, : stop - start] = tokens_T[start - stop :]
            inputs_BS[row, int(start == 0) : stop - start] = tokens_T[:-1]
        return TextBatch(inputs_BS, targets_BS)
