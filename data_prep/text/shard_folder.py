"""The folder of a tokenizing run: fills shards one by one and publishes them as a corpus.

A shard is finished when its record in `.partial/records` exists. A resumed run writes everything else again.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from comera_dist.data.contents import file_sha256
from comera_dist.data.manifest import FORMAT
from comera_dist.data.shards import Corpus
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.files.output_folder import OutputFolder, sync, write_json
from data_prep.files.split import TRAIN
from data_prep.text.encoding import token_dtype
from data_prep.text.place_file import PlaceFile, StreamPlace
from data_prep.text.shards import TextShard, Unit
from data_prep.text.tokenizer_copy import tokenizer_copy, tokenizer_entry

_SETTINGS = "parameters.json"


class ShardFolder(OutputFolder):
    """Writes one corpus."""

    def __init__(self, output: Path, tokenizer: Tokenizer, parameters: dict[str, Any], splits: list[str]):
        super().__init__(output, parameters)
        self._tokenizer, self._dtype = tokenizer, token_dtype(tokenizer.vocab_size)
        self._planned = dict.fromkeys(splits, 0)  # shards of each split
        self._place = PlaceFile(self.partial)
        self._writing: BinaryIO | None = None  # the shard that `append` is filling

    def is_finished(self) -> bool:
        """True if the corpus exists with these parameters. Raises DataError if it is another one, or damaged."""
        if not self.is_published(tokenizer=tokenizer_entry(self._tokenizer), eos_id=self._tokenizer.eos_id):
            return False
        Corpus(self.output)
        return True

    @contextmanager
    def writing(self, overwrite: bool) -> Iterator[None]:
        """Claims the folder, and keeps finished shards of an earlier run with these parameters.

        Raises DataError, unless `overwrite`, if the folder holds a corpus or shards of other settings.
        """
        with self.claimed():
            started = _read_object(self.partial / _SETTINGS)
            # A tokenizer.json names no end of a text: that may change without it. Earlier versions did not write it.
            same_end = started.get("eos_id", self._tokenizer.eos_id) == self._tokenizer.eos_id
            is_ours = started.get("tokenizer") == self._tokenizer.fingerprint and same_end
            # `finish` records None after an empty split: its shards may serve a run with another split.
            may_keep = is_ours and started.get("parameters") in (None, self.parameters)
            present = self.output / self._tokenizer.file_name
            is_other = present.exists() and file_sha256(present) != self._tokenizer.fingerprint
            if not overwrite and (is_other or (started and not may_keep)):
                raise self.other_settings()
            if not may_keep:
                self.discard()
            for folder in ("records", *self._planned):
                (self.partial / folder).mkdir(parents=True, exist_ok=True)
            if overwrite:
                self._place.remove()
            self._settle(self.parameters)
            yield

    def keeps(self, shard: TextShard) -> bool:
        """Plans `shard`. True if an earlier run wrote it from the same texts and its file is whole."""
        self._planned[shard.split] = shard.index + 1
        record = _read_object(self._record_path(shard.split, shard.index))
        return record.get("texts_sha256") == shard.sha256 and self._is_whole(shard.split, shard.index)

    def place(self) -> StreamPlace | None:
        """The place of the stream that a run with these settings left behind its last shard.

        None if there is none, or a shard before it is not whole.
        """
        place = self._place.read()
        before = {split: part["index"] for split, part in place.state["filling"].items()} if place else {}
        if place and all(self._is_whole(split, index) for split, stop in before.items() for index in range(stop)):
            return place
        self._place.remove()
        return None

    def keep_before(self, filling: dict[str, TextShard]) -> list[int]:
        """Plans the finished shards before those of `filling`. Returns their bytes of text."""
        self._planned = {split: shard.index for split, shard in filling.items()}
        return [shard["bytes"] for split in filling for shard in self._split_entry(split)["shards"]]

    def append(self, unit: Unit, tokens: bytes) -> None:
        """Adds the next unit of the shard that is being written. Its last unit finishes the shard."""
        path = self._shard_path(unit.shard.split, unit.shard.index)
        if self._writing is None:
            self._writing = open(path, "wb")  # noqa: SIM115 - open until the shard's last unit
        self._writing.write(tokens)
        if unit.last:
            with self._writing as file:
                sync(file)
            self._writing = None
            self._record(unit.shard, path)
            if unit.shard.behind is not None:
                self._place.write(unit.shard.behind)

    def finish(self, skipped: dict[str, int]) -> Corpus:
        """Publishes the planned shards.

        Raises DataError if a split is empty. Its shards are then kept for a run with another split.
        """
        manifest = self._manifest(skipped)
        documents = {split: entry["documents"] for split, entry in manifest["splits"].items()}
        if not all(documents.values()):
            self._settle(parameters=None)
            self._place.remove()
            raise _empty_split(documents, self.parameters)
        for split, planned in self._planned.items():
            for file in (self.partial / split).iterdir():
                if int(file.stem) >= planned:  # of an earlier run over a larger source
                    file.unlink()
        self.replace_with(manifest, tokenizer_copy(self._tokenizer))
        return Corpus(self.output)

    def _is_whole(self, split: str, index: int) -> bool:
        """True if the shard has a record, and its file is the one that was recorded."""
        record = _read_object(self._record_path(split, index))
        try:
            return bool(record["sha256"] == file_sha256(self._shard_path(split, index)))
        except (OSError, KeyError):
            return False

    def _settle(self, parameters: dict[str, Any] | None) -> None:
        tokenizer = {"tokenizer": self._tokenizer.fingerprint, "eos_id": self._tokenizer.eos_id}
        write_json(self.partial / _SETTINGS, {"parameters": parameters, **tokenizer})

    def _record(self, shard: TextShard, path: Path) -> None:
        record = {
            "tokens": path.stat().st_size // self._dtype.itemsize,
            "documents": len(shard.texts),
            "bytes": shard.bytes,
            "sha256": file_sha256(path),
            "texts_sha256": shard.sha256,
        }
        write_json(self._record_path(shard.split, shard.index), record)

    def _manifest(self, skipped: dict[str, int]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "dtype": "uint16" if self._dtype.itemsize == 2 else "uint32",
            "vocab_size": self._tokenizer.vocab_size,
            "eos_id": self._tokenizer.eos_id,
            "tokenizer": tokenizer_entry(self._tokenizer),
            "source": self.parameters["source"],
            "parameters": self.parameters,
            "splits": {split: self._split_entry(split) for split in self._planned},
            "skipped": skipped,
        }

    def _split_entry(self, split: str) -> dict[str, Any]:
        shards = []
        for index in range(self._planned[split]):
            record = json.loads(self._record_path(split, index).read_bytes())
            del record["texts_sha256"]
            shards.append({"file": f"{split}/{index:05d}.bin", **record})
        totals = {key: sum(shard[key] for shard in shards) for key in ("tokens", "documents", "bytes")}
        return {**totals, "shards": shards}

    def _shard_path(self, split: str, index: int) -> Path:
        return self.partial / split / f"{index:05d}.bin"

    def _record_path(self, split: str, index: int) -> Path:
        return self.partial / "records" / f"{split}-{index:05d}.json"


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object, {} if the file holds none or cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _empty_split(documents: dict[str, int], parameters: dict[str, Any]) -> DataError:
    """The error for `documents` by split, one of which has 0. It names only remedies that can help."""
    count, own_valid = sum(documents.values()), parameters["valid_source"] is not None
    if not documents[TRAIN] and (own_valid or not count):
        return DataError("no training document was found; check --source, and --text-key of tables")
    if own_valid:
        return DataError("no validation document was found; check --valid-source, and --text-key of tables")
    if count == 1:
        found, fraction = "the source has one document, which cannot be split", ""
    else:
        empty, change = ("training", "lower") if not documents[TRAIN] else ("validation", "raise")
        found, fraction = f"none of the {count} documents fell to {empty}", f", {change} --valid-fraction"
    separate = "name the lines between its documents with --document-separator"
    if parameters.get("document_separator"):
        separate = "check --document-separator"
    return DataError(f"{found}; {separate}, or name a --valid-source{fraction}")
