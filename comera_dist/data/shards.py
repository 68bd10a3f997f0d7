"""A tokenized corpus on disk: a manifest, a tokenizer, and memory-mapped token shards per split.

Layout: `manifest.json`, `tokenizer.model`, `train/00000.bin`, `valid/00000.bin`, ... A shard is raw
little-endian uint16 or uint32; every document ends with the EOS id. A corpus exists only when its manifest
exists.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from comera_dist.errors import DataError

FORMAT = 1
MANIFEST = "manifest.json"
PARTIAL = ".partial"
_DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


def manifest_fingerprint(manifest: dict) -> str:
    """sha256 of the manifest in a canonical spelling. It names the corpus: every shard's sha256 is in it."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_content(file: Path, sha256: str, remedy: str) -> None:
    """DataError when `file` is missing or its content is another one."""
    if not file.is_file() or file_sha256(file) != sha256:
        raise DataError(f"{file} is damaged: its sha256 is not the manifest's; {remedy}.")


def other_kind(path: Path, found: str, wanted: str, command: str) -> DataError:
    """What to say of data that were prepared for another kind of model; `command` makes those that are wanted."""
    return DataError(
        f"{path} holds {found}, and this model reads {wanted}; name a data set of {command}, or change model.kind."
    )


@dataclass(frozen=True)
class Shard:
    path: Path
    tokens: int
    sha256: str


class TokenSplit:
    """The tokens of one split as one long row across all shards. A shard is mapped when first read."""

    def __init__(self, name: str, shards: list[Shard], dtype: np.dtype, eos_id: int, documents: int, bytes: int):
        self.name = name
        self.eos_id = eos_id
        self.documents = documents
        self.bytes = bytes  # of the UTF-8 text, for bits per byte
        self.shards = shards
        self._dtype = dtype
        self._starts = np.cumsum([0] + [shard.tokens for shard in shards])
        self._maps: dict[int, np.memmap] = {}

    @property
    def tokens(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start..stop-1 as int64, shape (stop - start,). IndexError outside of the split."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens {start}..{stop} of split {self.name!r}, which has {self.tokens}")
        tokens = np.empty(stop - start, dtype=np.int64)
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(tokens):
            offset = start + done - int(self._starts[index])
            part = self._map(index)[offset : offset + len(tokens) - done]
            tokens[done : done + len(part)] = part
            done += len(part)
            index += 1
        return tokens

    def _map(self, index: int) -> np.memmap:
        if index not in self._maps:
            self._maps[index] = np.memmap(self.shards[index].path, dtype=self._dtype, mode="r")
        return self._maps[index]


class Corpus:
    """An opened corpus; `Corpus.open(path)` checks that every file is there and has its full size."""

    def __init__(self, path: Path, manifest: dict):
        self.path = path
        self.manifest = manifest
        self.fingerprint = manifest_fingerprint(manifest)
        self.vocab_size: int = manifest["vocab_size"]
        self.eos_id: int = manifest["eos_id"]
        self.dtype = _DTYPES[manifest["dtype"]]
        self.tokenizer_path = path / manifest["tokenizer"]["file"]
        self.splits = {name: self._split(name, entry) for name, entry in manifest["splits"].items()}

    @classmethod
    def open(cls, path: str | Path) -> "Corpus":
        """DataError, naming the remedy, when the corpus is missing, unfinished, unreadable or cut short."""
        path = Path(path)
        try:
            corpus = cls(path, _read_manifest(path))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path / MANIFEST} is not a corpus manifest of format {FORMAT}; {_REBUILD}.") from error
        corpus._check_sizes()
        return corpus

    def split(self, name: str) -> TokenSplit:
        if name not in self.splits:
            raise DataError(f"Corpus {self.path} has no split {name!r}; it has {', '.join(self.splits)}.")
        return self.splits[name]

    def verify(self) -> None:
        """Compares the sha256 of every file with the manifest; DataError names the file that differs."""
        if file_sha256(self.tokenizer_path) != self.manifest["tokenizer"]["sha256"]:
            raise DataError(f"{self.tokenizer_path} is not the tokenizer that made this corpus; {_REBUILD}.")
        for shard in self._shards():
            check_content(shard.path, shard.sha256, _REBUILD)

    def _split(self, name: str, entry: dict) -> TokenSplit:
        shards = [Shard(self.path / shard["file"], shard["tokens"], shard["sha256"]) for shard in entry["shards"]]
        return TokenSplit(name, shards, self.dtype, self.eos_id, entry["documents"], entry["bytes"])

    def _shards(self) -> list[Shard]:
        return [shard for split in self.splits.values() for shard in split.shards]

    def _check_sizes(self) -> None:
        if not self.tokenizer_path.is_file():
            raise DataError(f"{self.tokenizer_path} is missing; {_REBUILD}.")
        for shard in self._shards():
            expected = shard.tokens * self.dtype.itemsize
            found = shard.path.stat().st_size if shard.path.is_file() else None
            if found is None:
                raise DataError(f"{shard.path} is missing, the manifest lists it with {expected} bytes; {_REBUILD}.")
            if found != expected:
                raise DataError(f"{shard.path} has {found} bytes, the manifest says {expected}; {_REBUILD}.")


_REBUILD = "copy the corpus again, or rebuild it with data_prep/tokenize_corpus.py --overwrite"


def _read_manifest(path: Path) -> dict:
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(_missing(path, error)) from error
    except ValueError as error:
        raise DataError(f"{file} is not JSON ({error}); {_REBUILD}.") from error
    if "kind" in manifest:
        raise other_kind(path, manifest["kind"], "text", "data_prep/tokenize_corpus.py")
    if manifest["format"] != FORMAT or manifest["dtype"] not in _DTYPES:
        raise KeyError("format")
    return manifest


def _missing(path: Path, error: OSError) -> str:
    if (path / PARTIAL).exists():
        return f"Corpus {path} is not finished; run the same data_prep/tokenize_corpus.py command again."
    return (
        f"There is no corpus at {path} ({MANIFEST}: {error.strerror}); run `make corpus` for the default, "
        f"or `python data_prep/tokenize_corpus.py --source ... --tokenizer ... --output {path}`."
    )
