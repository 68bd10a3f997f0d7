"""Windows that slide over a stream of token ids: every id is judged once, and has a long context before it.

Shapes: B windows of a batch, S ids that a window reads.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from comera_dist.data.windows import TextBatch
from comera_dist.judge.likelihood import Ending
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.runtime.processes import Processes


def sliding_windows(ids: Iterable[int], window: int, stride: int) -> Iterator[Ending]:
    """Windows of at most `window` ids and the one that follows them, each `stride` ids after the one before.

    The first id is only read. Of the others the first window judges `window`, and each later window its last `stride`:
    those have more than `window - stride` ids before them.
    """
    stream = iter(ids)
    known, fresh = list(islice(stream, 1)), list(islice(stream, window))
    while fresh:
        known += fresh
        yield Ending(known, len(fresh))
        known, fresh = known[-(window - stride + 1) :], list(islice(stream, stride))


def window_batches(windows: Iterable[Ending], rows: int, processes: Processes) -> Iterator[TextBatch]:
    """This process's share of `windows`, at most `rows` at once. Every process gets equally many batches."""
    stream = iter(windows)
    while group := list(islice(stream, rows * processes.count)):
        yield _batch(group[processes.index * rows : (processes.index + 1) * rows])


def _batch(windows: list[Ending]) -> TextBatch:
    """Inputs and targets (B, S), filled up with IGNORED_TARGET; without a window, one row that counts nothing."""
    shape = max(1, len(windows)), max((len(window.ids) - 1 for window in windows), default=1)
    inputs_BS, targets_BS = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORED_TARGET)
    for row, (ids, length) in enumerate(windows):
        last = len(ids) - 1
        inputs_BS[row, :last] = torch.tensor(ids[:-1])
        targets_BS[row, last - length : last] = torch.tensor(ids[-length:])
    return TextBatch(inputs_BS, targets_BS)
