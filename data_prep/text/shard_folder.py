"""The folder of a tokenizing run: fills shards one by one and publishes them as a corpus.

A shard counts as done when its record in `.partial/records` exists. Everything else that a killed run leaves behind is
written again.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comera_dist.data.contents import file_sha256
from comera_dist.data.manifest import FORMAT
from comera_dist.data.shards import Corpus
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.files.output_folder import OutputFolder, sync, write_json
from data_prep.files.split import TRAIN
from data_prep.text.encoding import token_dtype
from data_prep.text.shards import TextShard, Unit

_TOKENIZER, _SETTINGS = "tokenizer.model", "parameters.json"


class ShardFolder(OutputFolder):
    """Writes one corpus."""

    def __init__(self, output: Path, tokenizer: Tokenizer, parameters: dict, splits: list[str]):
        super().__init__(output, parameters)
        self._tokenizer, self._dtype = tokenizer, token_dtype(tokenizer.vocab_size)
        self._planned = dict.fromkeys(splits, 0)  # shards of each split
        self._writing: tuple | None = None  # open file and digest of the shard that `append` is filling

    def is_finished(self) -> bool:
        """True if the corpus is there with these parameters; DataError if it is another one, or damaged."""
        is_there = self.is_published(tokenizer=self._tokenizer_entry())
        if is_there:
            Corpus(self.output)
        return is_there

    @contextmanager
    def writing(self, overwrite: bool) -> Iterator[None]:
        """Claims the folder and keeps in `.partial` only shards of these parameters."""
        with self.claimed():
            if not (overwrite or self._fits()):
                raise self.other_settings()
            if not self._may_keep():
                self.discard()
            for folder in ("records", *self._planned):
                (self.partial / folder).mkdir(parents=True, exist_ok=True)
            self._settle(self.parameters)
            yield

    def keeps(self, shard: TextShard) -> bool:
        """Plans `shard`; True when an earlier run wrote it from the same texts and its file is whole."""
        self._planned[shard.split] = shard.index + 1
        try:
            record = _read_object(self._record_path(shard.split, shard.index))
            file = self._shard_path(shard.split, shard.index)
            return record["texts_sha256"] == shard.sha256 and record["sha256"] == file_sha256(file)
        except (OSError, KeyError):
            return False

    def append(self, unit: Unit, tokens: bytes) -> None:
        """Adds the next unit of the shard that is being written; its last unit completes the shard."""
        if self._writing is None:
            path = self._shard_path(unit.shard.split, unit.shard.index)
            self._writing = open(path, "wb"), hashlib.sha256()  # noqa: SIM115 - open until the shard's last unit
        file, digest = self._writing
        file.write(tokens)
        digest.update(tokens)
        if unit.last:
            size = file.tell()
            with file:
                sync(file)
            self._writing = None
            self._record(unit.shard, size // self._dtype.itemsize, digest.hexdigest())

    def finish(self, skipped: dict) -> Corpus:
        """Publishes the shards that were planned.

        DataError when a split stayed empty; its shards are then kept for a run with other settings of the split.
        """
        manifest = self._manifest(skipped)
        documents = {split: entry["documents"] for split, entry in manifest["splits"].items()}
        if not all(documents.values()):
            self._settle(parameters=None)
            raise _empty_split(documents, self.parameters)
        for split, planned in self._planned.items():
            for file in (self.partial / split).iterdir():
                if int(file.stem) >= planned:  # of an earlier run over a larger source
                    file.unlink()
        self.publish(manifest, {_TOKENIZER: self._tokenizer.path.read_bytes()})
        return Corpus(self.output)

    def _fits(self) -> bool:
        """False if the folder holds tokens of another tokenizer, or an unfinished run with other settings."""
        present = self.output / _TOKENIZER
        is_other = present.exists() and file_sha256(present) != self._tokenizer.fingerprint
        return not is_other and (not self._started() or self._may_keep())

    def _may_keep(self) -> bool:
        """True if shards of an earlier run have this tokenizer, and these parameters or ones that no longer hold."""
        started = self._started()
        is_ours = started.get("tokenizer") == self._tokenizer.fingerprint
        return is_ours and started.get("parameters") in (None, self.parameters)

    def _started(self) -> dict:
        """The settings of the shards in `.partial`; {} when there are none, or nothing that tells."""
        try:
            return _read_object(self.partial / _SETTINGS)
        except OSError:
            return {}

    def _settle(self, parameters: dict | None) -> None:
        write_json(self.partial / _SETTINGS, {"parameters": parameters, "tokenizer": self._tokenizer.fingerprint})

    def _record(self, shard: TextShard, tokens: int, sha256: str) -> None:
        record = {"tokens": tokens, "documents": len(shard.texts), "bytes": shard.bytes, "sha256": sha256}
        write_json(self._record_path(shard.split, shard.index), {**record, "texts_sha256": shard.sha256})

    def _manifest(self, skipped: dict) -> dict:
        return {
            "format": FORMAT,
            "dtype": "uint16" if self._dtype.itemsize == 2 else "uint32",
            "vocab_size": self._tokenizer.vocab_size,
            "eos_id": self._tokenizer.eos_id,
            "tokenizer": self._tokenizer_entry(),
            "source": self.parameters["source"],
            "parameters": self.parameters,
            "splits": {split: self._split_entry(split) for split in self._planned},
            "skipped": skipped,
        }

    def _tokenizer_entry(self) -> dict:
        return {"file": _TOKENIZER, "sha256": self._tokenizer.fingerprint}

    def _split_entry(self, split: str) -> dict:
        shards = []
        for index in range(self._planned[split]):
            record = _read_object(self._record_path(split, index))
            record.pop("texts_sha256")
            shards.append({"file": f"{split}/{index:05d}.bin", **record})
        totals = {key: sum(shard[key] for shard in shards) for key in ("tokens", "documents", "bytes")}
        return {**totals, "shards": shards}

    def _shard_path(self, split: str, index: int) -> Path:
        return self.partial / split / f"{index:05d}.bin"

    def _record_path(self, split: str, index: int) -> Path:
        return self.partial / "records" / f"{split}-{index:05d}.json"


def _read_object(path: Path) -> dict:
    """A JSON object; {} where the file holds none. OSError when it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _empty_split(documents: dict[str, int], parameters: dict) -> DataError:
    """The error for `documents` by split, one of which has 0; it names no remedy that cannot help."""
    count, own_valid = sum(documents.values()), parameters["valid_source"] is not None
    if not documents[TRAIN] and (own_valid or not count):
        return DataError("No training document was found; check --source and --text-key.")
    if own_valid:
        return DataError("No validation document was found; check --valid-source and --text-key.")
    if count == 1:
        found, fraction = "The source has one document, which cannot be split", ""
    else:
        empty, change = ("training", "lower") if not documents[TRAIN] else ("validation", "raise")
        found, fraction = f"None of the {count} documents fell to {empty}", f", {change} --valid-fraction"
    return DataError(
        f"{found}; name the lines between its documents with --document-separator, name a --valid-source{fraction}, or "
        "pass --valid-fraction 0 to go without validation."
    )
