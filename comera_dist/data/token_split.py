"""The tokens of one split of a corpus, read across its shards."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.errors import DataError

OPEN_FILES = 256  # chosen: a quarter of the 1,024 that Linux grants a process by default


@dataclass(frozen=True)
class Shard:
    path: Path
    tokens: int
    sha256: str


class TokenSplit:
    """The tokens of one split as one sequence across all shards. A shard is opened when it is first read.

    At most `open_files` shards stay open. Shards are read by `pread`, not mapped: reading a map of a file that is cut
    ends the process with SIGBUS.
    """

    def __init__(
        self,
        name: str,
        shards: list[Shard],
        dtype: np.dtype[Any],
        eos_id: int,
        vocab_size: int,
        documents: int,
        bytes: int,
        open_files: int = OPEN_FILES,
    ):
        self.name, self.shards, self.eos_id, self.documents = name, shards, eos_id, documents
        self.bytes = bytes  # of the UTF-8 text, for bits per byte
        self._dtype, self._vocab_size = dtype, vocab_size
        self._starts = np.cumsum([0] + [shard.tokens for shard in shards])
        # A file that falls out of the cache is closed once no thread reads it any more.
        self._open = lru_cache(open_files)(lambda index: open(shards[index].path, "rb", buffering=0))  # noqa: SIM115

    @property
    def tokens(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start..stop-1, shape (stop - start,).

        Raises IndexError outside of the split, and DataError if a shard was cut or has a token beyond the vocabulary.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start}..{stop} of split {self.name!r}, which has {self.tokens}")
        tokens = np.empty(stop - start, dtype=np.int64)
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(tokens):
            offset = start + done - int(self._starts[index])
            part = self._read_shard(index, offset, min(len(tokens) - done, self.shards[index].tokens - offset))
            tokens[done : done + len(part)] = part
            done += len(part)
            index += 1
        return tokens

    def _read_shard(self, index: int, start: int, count: int) -> NDArray[Any]:
        path, size = self.shards[index].path, self._dtype.itemsize
        try:
            file = self._open(index)  # a name keeps it open if another thread's file takes its place in the cache
            raw = os.pread(file.fileno(), count * size, start * size)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); restore the corpus from a copy") from error
        if len(raw) < count * size:
            raise DataError(
                f"{path} was cut after the corpus was opened: {len(raw)} bytes at {start * size}, expected "
                f"{count * size}; restore it from a copy, or rebuild the corpus, and start again"
            )
        tokens = np.frombuffer(raw, dtype=self._dtype)
        if count and (largest := int(tokens.max())) >= self._vocab_size:
            raise DataError(
                f"{path} holds token {largest} and the vocabulary has {self._vocab_size}; copy the corpus again, or "
                "rebuild it with data_prep/tokenize_corpus.py --overwrite"
            )
        return tokens
