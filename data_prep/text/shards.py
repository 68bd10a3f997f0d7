"""Cuts the stream of documents into shards and shards into units of work.

A shard is a run of consecutive documents of one split with about `shard_bytes` of text. The cut depends on
the documents alone, so the corpus is the same for any number of workers and after any number of restarts.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from data_prep.text.sources import Document

UNIT_BYTES = 1 << 20


@dataclass
class TextShard:
    """The documents of one shard before they are tokenized; `sha256` names their exact content."""

    split: str
    index: int
    texts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256, repr=False)

    def add(self, text: str) -> None:
        raw = text.encode()
        self.texts.append(text)
        self.sizes.append(len(raw))
        self._digest.update(len(raw).to_bytes(8, "big") + raw)

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class Unit(NamedTuple):
    """A part of a shard that one worker tokenizes at a time."""

    shard: TextShard
    texts: list[str]
    bytes: int
    last: bool


def plan_shards(documents: Iterator[tuple[str, Document]], shard_bytes: int, splits: list[str]) -> Iterator[TextShard]:
    """Shards in the order in which they are filled; holds one shard of text per split in memory."""
    filling = {split: TextShard(split, 0) for split in splits}
    filled = dict.fromkeys(splits, 0)
    for split, document in documents:
        shard = filling[split]
        shard.add(document.words)
        filled[split] += shard.sizes[-1]
        if filled[split] >= shard_bytes:
            filling[split], filled[split] = TextShard(split, shard.index + 1), 0
            yield shard
    yield from (shard for shard in filling.values() if shard.texts)


def units_of(shard: TextShard) -> Iterator[Unit]:
    """The shard's documents in groups of at least UNIT_BYTES, except for the last."""
    start = size = 0
    for stop, document_size in enumerate(shard.sizes, start=1):
        size += document_size
        last = stop == len(shard.sizes)
        if size >= UNIT_BYTES or last:
            yield Unit(shard, shard.texts[start:stop], size, last)
            start, size = stop, 0
