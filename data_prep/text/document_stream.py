"""The documents of all sources on their way into shards. The way can be continued behind a shard of an earlier run."""

from collections.abc import Iterator

from data_prep.files.skips import Skips
from data_prep.files.split import TEST, VALID, SplitRule, split_items
from data_prep.text.near_copies import NearCopies, without_near_copies
from data_prep.text.place_file import StreamPlace
from data_prep.text.shards import TextShard, plan_shards
from data_prep.text.sources import COPIES, Documents


class DocumentStream:
    """Without documents that are as similar to an earlier one as `similarity`, if it is given.

    At most the text of one shard of each split is in memory.
    """

    def __init__(
        self, source: Documents, rule: SplitRule, skips: Skips, splits: list[str], similarity: float | None = None
    ):
        self._source, self._rule, self._skips = source, rule, skips
        self._valid = rule.valid if isinstance(rule.valid, Documents) else Documents([])
        self._resumable = source.is_resumable or self._valid.is_resumable
        self._near = NearCopies(similarity, self._resumable) if similarity else None
        self._held_out: dict[str, set[bytes]] = {TEST: set(), VALID: set()}
        self.filling = {split: TextShard(split, 0) for split in splits}  # with the texts that no shard has yet

    def size_hint(self) -> int | None:
        return self._source.size_hint()

    def notes(self) -> list[str]:
        """Lines for the report, after `shards`."""
        return self._source.notes()

    def shards(self, shard_bytes: int) -> Iterator[TextShard]:
        """Shards of at least `shard_bytes` of text, except for the last of a split."""
        documents = split_items(self._source, self._rule, self._skips, COPIES, self._held_out)
        if self._near:
            documents = without_near_copies(documents, self._near, self._skips)
        return plan_shards(documents, shard_bytes, self.filling)

    def place(self) -> StreamPlace | None:
        """The place behind the shard that was yielded last; None while a source is read that cannot be continued.

        Its sketches are those since the last place.
        """
        source, valid = self._source.place(), self._valid.place()
        if not self._resumable or source is None or valid is None:
            return None
        state = {
            "source": source,
            "valid": valid,
            "held_out": [digest.hex() for digest in self._held_out[VALID]],
            "skips": self._skips.place(),
            "filling": {name: {"index": shard.index, "texts": [*shard.texts]} for name, shard in self.filling.items()},
        }
        return StreamPlace(state, self._near.new_sketches() if self._near else b"")

    def resume(self, place: StreamPlace) -> None:
        """Lets `shards` begin at a place of an earlier run, with all sketches before it."""
        self._source.resume(place.state["source"])
        self._valid.resume(place.state["valid"])
        self._held_out[VALID] |= {bytes.fromhex(digest) for digest in place.state["held_out"]}
        self._skips.resume(place.state["skips"])
        for split, begun in place.state["filling"].items():
            self.filling[split] = TextShard(split, begun["index"])
            for text in begun["texts"]:
                self.filling[split].add(text)
        if self._near:
            self._near.resume(place.sketches)
