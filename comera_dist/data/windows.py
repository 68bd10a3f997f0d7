"""Windows of a tokenized corpus as rows of batches.

Legend: B sequences of a batch, S tokens of a sequence, W windows of a split. Training window w holds tokens
w*S .. w*S+S (S inputs and, one later, S targets).
"""

from typing import NamedTuple

import numpy as np
import torch

from comera_dist.data.batches import FILLER
from comera_dist.data.token_split import TokenSplit
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET


class TextBatch(NamedTuple):
    inputs_BS: torch.Tensor
    targets_BS: torch.Tensor


class TrainWindows:
    """Disjoint windows of a split. DataError when it holds no whole one."""

    def __init__(self, split: TokenSplit, seq_len: int):
        self._split, self._seq_len = split, seq_len
        self._windows = _count_windows(split, seq_len)

    def __len__(self) -> int:
        return self._windows

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> TextBatch:
        """The windows `row_B`; nothing about them is random."""
        starts_B = row_B * self._seq_len
        rows = [self._split.read(int(start), int(start) + self._seq_len + 1) for start in starts_B]
        tokens_BT = torch.from_numpy(np.stack(rows))
        return TextBatch(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())


class ValidationWindows:
    """The split in order, every token the target of exactly one place (the first one is predicted from EOS).

    The last window may be cut short: what is missing has IGNORED_TARGET.
    """

    def __init__(self, split: TokenSplit, seq_len: int):
        if not split.tokens:
            raise DataError(
                f"Split {split.name!r} of the corpus is empty; tokenize it with --valid-source or a larger "
                "--valid-fraction."
            )
        self._split, self._seq_len = split, seq_len

    def __len__(self) -> int:
        return -(-self._split.tokens // self._seq_len)

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> TextBatch:
        """The windows `row_B`, where FILLER is one without a target."""
        shape = (len(row_B), self._seq_len)
        inputs_BS = torch.full(shape, self._split.eos_id, dtype=torch.long)
        targets_BS = torch.full(shape, IGNORED_TARGET, dtype=torch.long)
        for row, window in enumerate(row_B):
            if window == FILLER:
                continue
            start, count = int(window) * self._seq_len, self._target_count(int(window))
            tokens_T = torch.from_numpy(self._split.read(max(start - 1, 0), start + count))
            targets_BS[row, :count] = tokens_T[-count:]
            inputs_BS[row, 1 if start == 0 else 0 : count] = tokens_T[:-1]
        return TextBatch(inputs_BS, targets_BS)

    def _target_count(self, window: int) -> int:
        return min(self._seq_len, self._split.tokens - window * self._seq_len)


def _count_windows(split: TokenSplit, seq_len: int) -> int:
    windows = (split.tokens - 1) // seq_len
    if windows < 1:
        raise DataError(
            f"Split {split.name!r} has {split.tokens} tokens, fewer than one sequence of {seq_len} + 1; "
            "use a larger corpus or a shorter sequence."
        )
    return windows
