"""The place of the stream behind the last finished shard, kept beside the shards of an unfinished run.

`place` is a sha256 and the JSON that it proves. `sketches` grows with every place. Bytes behind the length that the
place names were left by a run that was cut before it wrote its place.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from comera_dist.storage.files import write_whole
from data_prep.files.hub import Place
from data_prep.files.output_folder import sync


class StreamPlace(NamedTuple):
    """`sketches` of documents, for the search for near copies: those since the place before, or in `read` all."""

    state: Place
    sketches: bytes


class PlaceFile:
    def __init__(self, folder: Path):
        self._path, self._sketches, self._length = folder / "place", folder / "sketches", 0

    def write(self, place: StreamPlace) -> None:
        """Replaces the place in one move, after its sketches."""
        if place.sketches:
            with open(self._sketches, "ab") as file:
                file.truncate(self._length)
                file.write(place.sketches)
                sync(file)
            self._length += len(place.sketches)
        state = json.dumps({**place.state, "sketch_bytes": self._length}, ensure_ascii=False)
        content = state.encode(errors="backslashreplace")  # a file's name may hold bytes that are not UTF-8
        write_whole(self._path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content, flushed=True)

    def read(self) -> StreamPlace | None:
        """None if there is no place, or somebody changed one of the files."""
        try:
            digest, _, content = self._path.read_bytes().partition(b"\n")
            sketches = self._sketches.read_bytes() if self._sketches.exists() else b""
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest().encode() != digest:
            return None
        state: Place = json.loads(content)
        length = self._length = state["sketch_bytes"]
        return StreamPlace(state, sketches[:length]) if len(sketches) >= length else None

    def remove(self) -> None:
        """Lets the next run read its sources from their beginning."""
        self._path.unlink(missing_ok=True)
        self._length = 0
