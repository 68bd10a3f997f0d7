"""The tokens of one split of a corpus, read across its shards."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.errors import DataError

_OPEN_FILES = 256  # chosen: a quarter of the 1,024 that Linux grants a process by default


@dataclass(frozen=True)
class Shard:
    path: Path
    tokens: int
    sha256: str


class ShardFile:
    """An open shard. It is read by `pread`, not mapped: a map of a file that is cut ends the process with SIGBUS."""

    def __init__(self, path: Path):
        self._path, self._file = path, -1
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error) from error

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def read(self, start: int, count: int) -> bytes:
        """Bytes start..start+count-1. Raises DataError if the file has fewer, or the disk fails."""
        parts = b""
        try:
            while len(parts) < count and (part := os.pread(self._file, count - len(parts), start + len(parts))):
                parts += part
        except OSError as error:
            raise self._unreadable(error) from error
        if len(parts) < count:
            raise DataError(
                f"{self._path} was cut after the corpus was opened: {len(parts)} bytes at {start}, expected {count}; "
                "restore it from a copy, or rebuild the corpus, and start again"
            )
        return parts

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"{self._path} cannot be read ({error.strerror}); restore the corpus from a copy")


class TokenSplit:
    """The tokens of one split as one sequence across all shards. A shard is opened when it is first read."""

    def __init__(
        self,
        name: str,
        shards: list[Shard],
        dtype: np.dtype[Any],
        eos_id: int,
        vocab_size: int,
        documents: int,
        bytes: int,
    ):
        self.name, self.shards, self.eos_id, self.documents = name, shards, eos_id, documents
        self.bytes = bytes  # of the UTF-8 text, for bits per byte
        self._dtype, self._vocab_size = dtype, vocab_size
        self._starts = np.cumsum([0] + [shard.tokens for shard in shards])
        # A file that falls out of the cache is closed once no thread reads it any more.
        self._open = lru_cache(_OPEN_FILES)(lambda index: ShardFile(shards[index].path))

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
        size = self._dtype.itemsize
        tokens = np.frombuffer(self._open(index).read(start * size, count * size), dtype=self._dtype)
        if len(tokens) and (largest := int(tokens.max())) >= self._vocab_size:
            raise DataError(
                f"{self.shards[index].path} holds token {largest} and the vocabulary has {self._vocab_size}; copy the "
                "corpus again, or rebuild it with data_prep/tokenize_corpus.py --overwrite"
            )
        return tokens
