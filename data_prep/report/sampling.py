"""The part of a split that a report reads: all of it, or runs of neighbours that are spread evenly over it.

Runs, because reading single documents all over a large corpus would touch every block of its files.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.token_split import TokenSplit

_RUNS = 64  # chosen: enough to see all parts of a corpus that several sources filled one after another
_BLOCK = 1 << 16  # chosen: tokens that are read at once


def even_runs(total: int, share: float) -> list[tuple[int, int]]:
    """(start, stop) of runs that hold `share` of `total` places together; one run of all places if it is 1 or more."""
    if share >= 1:
        return [(0, total)]
    runs = max(1, min(_RUNS, int(total * share)))
    length = max(1, int(total * share / runs))  # rounded down, so that runs do not overlap
    return [(start, start + length) for start in (total * run // runs for run in range(runs))]


def sampled_documents(split: TokenSplit, wanted: int) -> Iterator[NDArray[np.int64]]:
    """The tokens of about `wanted` documents, without EOS; of all documents if there are no more.

    A document is read if its first token lies in a run, so long documents are as likely as short ones.
    """
    for start, stop in even_runs(split.tokens, wanted / max(1, split.documents)):
        yield from _beginning_in(split, start, stop)


def _beginning_in(split: TokenSplit, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """Documents whose first token is one of the tokens start..stop-1."""
    position = max(0, start - 1)  # the token before may be the EOS that a document of this run follows
    parts: list[NDArray[np.int64]] | None = [] if start == 0 else None  # None until a document begins
    while position < split.tokens and (parts is not None or position < stop):
        block, begin = split.read(position, min(position + _BLOCK, split.tokens)), 0
        for end in np.flatnonzero(block == split.eos_id):
            if parts is not None:
                yield np.concatenate([*parts, block[begin:end]])
            parts, begin = [], int(end) + 1
            if position + begin >= stop:
                return
        if parts is not None:
            parts.append(block[begin:])
        position += len(block)
