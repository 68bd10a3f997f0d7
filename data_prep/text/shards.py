"""Cuts the stream of documents into shards, and shards into units of work.

A shard is a run of consecutive documents of one split with about `shard_bytes` of text. The cut depends on the
documents alone, so the corpus is the same for any number of workers and after any number of restarts.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from data_prep.text.place_file import StreamPlace
from data_prep.text.sources import Document

UNIT_BYTES = 1 << 20  # chosen: of text that a worker gets at a time


@dataclass
class TextShard:
    """The documents of one shard before they are tokenized."""

    split: str
    index: int
    texts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes of each text as UTF-8
    bytes: int = 0
    behind: StreamPlace | None = None  # None if the stream cannot be continued behind this shard

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.sizes.append(len(text.encode()))
        self.bytes += self.sizes[-1]

    @property
    def sha256(self) -> str:
        """Names the exact content, document by document."""
        digest = hashlib.sha256()
        for text, size in zip(self.texts, self.sizes, strict=True):
            digest.update(size.to_bytes(8, "big") + text.encode())
        return digest.hexdigest()


class Unit(NamedTuple):
    """A part of a shard that one worker tokenizes at a time."""

    shard: TextShard
    texts: list[str]
    bytes: int
    last: bool


def plan_shards(
    documents: Iterator[tuple[str, Document]], shard_bytes: int, filling: dict[str, TextShard]
) -> Iterator[TextShard]:
    """Shards in the order in which they are full. `filling` holds the next shard of each split with its first texts."""
    for split, document in documents:
        shard = filling[split]
        shard.add(document.words)
        if shard.bytes >= shard_bytes:
            filling[split] = TextShard(split, shard.index + 1)
            yield shard
    for split, shard in filling.items():
        if shard.texts:
            filling[split] = TextShard(split, shard.index + 1)
            yield shard


def units_of(shard: TextShard) -> Iterator[Unit]:
    """The shard's documents in groups of at least UNIT_BYTES, except for the last."""
    start = size = 0
    for stop, document_size in enumerate(shard.sizes, start=1):
        size += document_size
        last = stop == len(shard.sizes)
        if size >= UNIT_BYTES or last:
            yield Unit(shard, shard.texts[start:stop], size, last)
            start, size = stop, 0
