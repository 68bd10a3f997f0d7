"""A tokenized corpus on disk: a manifest, a tokenizer, and token shards per split.

Layout: `manifest.json`, `tokenizer.model`, `train/00000.bin`, `valid/00000.bin`, ... A shard is raw
little-endian uint16 or uint32; every document ends with the EOS id. A corpus exists only when its manifest
exists.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.contents import Contents
from comera_dist.data.manifest import Fields, ManifestError, read_json
from comera_dist.data.token_split import Shard, TokenSplit
from comera_dist.errors import DataError

FORMAT = 1
MANIFEST = "manifest.json"
PARTIAL = ".partial"
_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_REBUILD = "copy the corpus again, or rebuild it with data_prep/tokenize_corpus.py --overwrite"


def manifest_fingerprint(manifest: dict[str, Any]) -> str:
    """sha256 of the manifest in a canonical spelling. It names the corpus: every shard's sha256 is in it."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def other_kind(path: Path, found: object, wanted: str, command: str) -> DataError:
    """What to say of data that were prepared for another kind of model; `command` makes those that are wanted."""
    return DataError(
        f"{path} holds {found}, and this model reads {wanted}; name a data set of {command}, or change model.kind."
    )


class Corpus:
    """An opened corpus; `Corpus.open(path)` checks that every file is there and has its full size."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        """ManifestError where a value of `manifest` is missing, of another type or out of its range."""
        self.path = path
        self.manifest = manifest
        self.fingerprint = manifest_fingerprint(manifest)
        fields = Fields(manifest)
        fields.whole("format", FORMAT, FORMAT)
        self.dtype = _DTYPES[fields.one_of("dtype", tuple(_DTYPES))]
        self.vocab_size: int = fields.whole("vocab_size", 1, 256**self.dtype.itemsize)
        self.eos_id: int = fields.whole("eos_id", 0, self.vocab_size - 1)
        self.tokenizer_path = path / fields.fields("tokenizer").name("file")
        splits = fields.fields("splits")
        self.splits = {name: self._split(name, splits.fields(name)) for name in splits.named()}
        shards = {shard.path: shard.sha256 for split in self.splits.values() for shard in split.shards}
        self.contents = Contents({self.tokenizer_path: fields.fields("tokenizer").sha256("sha256"), **shards}, _REBUILD)

    @classmethod
    def open(cls, path: str | Path) -> "Corpus":
        """DataError, naming the remedy, when the corpus is missing, unfinished, unreadable or cut short."""
        path = Path(path)
        try:
            corpus = cls(path, _read_manifest(path))
        except ManifestError as error:
            raise DataError(
                f"{path / MANIFEST} is not a corpus manifest of format {FORMAT}: {error}; {_REBUILD}."
            ) from error
        corpus._check_sizes()
        return corpus

    def split(self, name: str) -> TokenSplit:
        if name not in self.splits:
            raise DataError(f"Corpus {self.path} has no split {name!r}; it has {', '.join(self.splits)}.")
        return self.splits[name]

    def verify(self) -> None:
        """Compares the sha256 of every file with the manifest; DataError names the file that differs."""
        self.contents.verify()

    def _split(self, name: str, entry: Fields) -> TokenSplit:
        records = [Fields(record, f"splits.{name}.shards[{i}]") for i, record in enumerate(entry.items_of("shards"))]
        shards = [self._shard(name, index, record) for index, record in enumerate(records)]
        for key in ("tokens", "documents", "bytes"):
            total = sum(record.whole(key, least=1) for record in records)
            entry.whole(key, least=total, most=total)
        documents, text_bytes = entry.whole("documents"), entry.whole("bytes")
        return TokenSplit(name, shards, self.dtype, self.eos_id, self.vocab_size, documents, text_bytes)

    def _shard(self, split: str, index: int, record: Fields) -> Shard:
        file = f"{split}/{index:05d}.bin"  # no other path, which might lead out of the folder
        record.one_of("file", (file,))
        return Shard(self.path / file, record.whole("tokens"), record.sha256("sha256"))

    def _check_sizes(self) -> None:
        if self.contents.size(self.tokenizer_path) is None:
            raise DataError(f"{self.tokenizer_path} is missing; {_REBUILD}.")
        for split in self.splits.values():
            for shard in split.shards:
                self.contents.check_size(shard.path, shard.tokens * self.dtype.itemsize)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = read_json(path / MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(_missing(path, error)) from error
    except OSError as error:
        raise DataError(
            f"{path / MANIFEST} cannot be read ({error.strerror}); make it readable, or {_REBUILD}."
        ) from error
    if isinstance(manifest, dict) and "kind" in manifest:
        raise other_kind(path, manifest["kind"], "text", "data_prep/tokenize_corpus.py")
    return manifest


def _missing(path: Path, error: OSError) -> str:
    if (path / PARTIAL).exists():
        return f"Corpus {path} is not finished; run the same data_prep/tokenize_corpus.py command again."
    return (
        f"There is no corpus at {path} ({MANIFEST}: {error.strerror}); run `make corpus` for the default, "
        f"or `python data_prep/tokenize_corpus.py --source ... --tokenizer ... --output {path}`."
    )
