"""The output folder of a tokenizing run: claim it, fill `.partial`, publish it as a corpus.

A shard counts as done when its record in `.partial/records` exists; the corpus exists when `manifest.json`
does. Everything else that a killed run leaves behind is written again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comera_dist.data.contents import file_sha256
from comera_dist.data.shards import FORMAT, MANIFEST, PARTIAL, Corpus
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.claim import held, names_place
from data_prep.encoding import token_dtype
from data_prep.shard_plan import TextShard, Unit
from data_prep.split import TRAIN

_TOKENIZER, _SETTINGS = "tokenizer.model", "parameters.json"


class CorpusFolder:
    """One output folder. `parameters` is everything that decides what the corpus will hold."""

    def __init__(self, output: Path, tokenizer: Tokenizer, parameters: dict, splits: list[str]):
        self.output = output
        self.partial = output / PARTIAL
        self._tokenizer, self._parameters, self._splits = tokenizer, parameters, splits
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._planned = dict.fromkeys(splits, 0)
        self._writing: tuple | None = None  # open file and digest of the shard that `append` is filling

    def is_finished(self) -> bool:
        """Whether the corpus is there with these parameters; DataError when it is another one, or damaged."""
        if not (self.output / MANIFEST).exists():
            return False
        manifest = Corpus.open(self.output).manifest
        found = manifest.get("parameters"), manifest["tokenizer"]["sha256"]
        if found != (self._parameters, self._tokenizer.fingerprint):
            raise _other_settings(self.output)
        return True

    @contextmanager
    def claim(self, overwrite: bool) -> Iterator[None]:
        """Holds the folder for this process and makes `.partial` fit for these parameters."""
        self.output.mkdir(parents=True, exist_ok=True)
        with held(self.output), names_place(self.output):
            self._prepare(overwrite)
            yield

    def keeps(self, shard: TextShard) -> bool:
        """Plans `shard`; True when an earlier run wrote it from the same texts and its file is whole."""
        self._planned[shard.split] = shard.index + 1
        path = self._shard_path(shard.split, shard.index)
        try:
            record = json.loads(self._record_path(shard.split, shard.index).read_bytes())
            return record["texts_sha256"] == shard.sha256 and record["sha256"] == file_sha256(path)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def append(self, unit: Unit, tokens: bytes) -> None:
        """Adds the next unit of the shard that is being written; its last unit completes the shard."""
        path = self._shard_path(unit.shard.split, unit.shard.index)
        if self._writing is None:
            self._writing = open(path, "wb"), hashlib.sha256()  # noqa: SIM115 - open until the shard's last unit
        file, digest = self._writing
        file.write(tokens)
        digest.update(tokens)
        if unit.last:
            size = file.tell()
            _sync_and_close(file)
            self._writing = None
            self._record(unit.shard, size // self._dtype.itemsize, digest.hexdigest())

    def publish(self, skipped: dict) -> Corpus:
        """Moves the shards into place and the manifest last.

        DataError when a split stayed empty; its shards are then kept for a run with other settings of the split.
        """
        manifest = self._manifest(skipped)
        documents = {split: manifest["splits"][split]["documents"] for split in self._splits}
        if not all(documents.values()):
            self._settle(parameters=None)
            raise _empty_split(documents, self._parameters)
        (self.output / MANIFEST).unlink(missing_ok=True)
        for split in self._splits:
            self._move_shards(split)
        (self.partial / _TOKENIZER).write_bytes(self._tokenizer.path.read_bytes())
        os.replace(self.partial / _TOKENIZER, self.output / _TOKENIZER)
        _write_json(self.partial / MANIFEST, manifest)
        os.replace(self.partial / MANIFEST, self.output / MANIFEST)
        self.discard()
        return Corpus.open(self.output)

    def discard(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)

    def _prepare(self, overwrite: bool) -> None:
        if not self._fits(overwrite):
            raise _other_settings(self.output)
        if not self._may_keep():
            self.discard()
        for folder in ("records", *self._splits):
            (self.partial / folder).mkdir(parents=True, exist_ok=True)
        self._settle(self._parameters)

    def _fits(self, overwrite: bool) -> bool:
        """Whether this run may write here: nothing of other settings is there, or it may be overwritten."""
        present = self.output / _TOKENIZER
        is_other = present.exists() and file_sha256(present) != self._tokenizer.fingerprint
        return overwrite or not (is_other or (self._started() and not self._may_keep()))

    def _may_keep(self) -> bool:
        """Whether the shards of an earlier run are of this one's settings, or of this tokenizer and none that hold."""
        started = self._started()
        is_ours = started.get("tokenizer") == self._tokenizer.fingerprint
        return is_ours and started.get("parameters") in (None, self._parameters)

    def _started(self) -> dict:
        """The settings of what `.partial` holds; {} where it holds nothing, or nothing that can be told."""
        try:
            started = json.loads((self.partial / _SETTINGS).read_bytes())
        except (OSError, ValueError):
            return {}
        return started if isinstance(started, dict) else {}

    def _settle(self, parameters: dict | None) -> None:
        settings = {"parameters": parameters, "tokenizer": self._tokenizer.fingerprint}
        _write_json(self.partial / _SETTINGS, settings)

    def _record(self, shard: TextShard, tokens: int, sha256: str) -> None:
        record = {"tokens": tokens, "documents": len(shard.texts), "bytes": shard.bytes, "sha256": sha256}
        _write_json(self._record_path(shard.split, shard.index), {**record, "texts_sha256": shard.sha256})

    def _manifest(self, skipped: dict) -> dict:
        return {
            "format": FORMAT,
            "dtype": "uint16" if self._dtype.itemsize == 2 else "uint32",
            "vocab_size": self._tokenizer.vocab_size,
            "eos_id": self._tokenizer.eos_id,
            "tokenizer": {"file": _TOKENIZER, "sha256": self._tokenizer.fingerprint},
            "source": self._parameters["source"],
            "parameters": self._parameters,
            "splits": {split: self._split_entry(split) for split in self._splits},
            "skipped": skipped,
        }

    def _split_entry(self, split: str) -> dict:
        shards = []
        for index in range(self._planned[split]):
            record = json.loads(self._record_path(split, index).read_bytes())
            record.pop("texts_sha256")
            shards.append({"file": f"{split}/{index:05d}.bin", **record})
        totals = {key: sum(shard[key] for shard in shards) for key in ("tokens", "documents", "bytes")}
        return {**totals, "shards": shards}

    def _move_shards(self, split: str) -> None:
        """Takes only planned shards: a run over a larger source may have left more."""
        target = self.output / split
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for index in range(self._planned[split]):
            os.replace(self._shard_path(split, index), target / f"{index:05d}.bin")

    def _shard_path(self, split: str, index: int) -> Path:
        return self.partial / split / f"{index:05d}.bin"

    def _record_path(self, split: str, index: int) -> Path:
        return self.partial / "records" / f"{split}-{index:05d}.json"


def _write_json(path: Path, content: dict) -> None:
    partial = path.with_name(path.name + ".tmp")
    with open(partial, "wb") as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _sync_and_close(file) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _other_settings(output: Path) -> DataError:
    return DataError(
        f"{output} holds tokens of another source, split or tokenizer, and the two do not mix; "
        "pass --overwrite to replace them, or name another --output."
    )


def _empty_split(documents: dict[str, int], parameters: dict) -> DataError:
    """What to say of the numbers of `documents` by split, one of which is 0; no remedy that cannot help."""
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
