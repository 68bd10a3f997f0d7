"""A tokenized corpus on disk: a manifest, a tokenizer, and token shards per split.

Layout: `manifest.json`, the tokenizer, `train/00000.bin`, `valid/00000.bin`, ... A shard is raw little-endian
uint16 or uint32; every document ends with the EOS id.
"""

from pathlib import Path

import numpy as np

from comera_dist.data.contents import Contents
from comera_dist.data.manifest import DTYPES, ShardRecord, TextManifest, TextSplit, shortened
from comera_dist.data.prepared import Kind, PreparedData
from comera_dist.data.token_split import Shard, TokenSplit
from comera_dist.errors import DataError

TEXT = Kind("text", "data_prep/tokenize_corpus.py", hint="run `make corpus` for the default one, or ")


class Corpus(PreparedData[TokenSplit]):
    """An opened corpus. Raises DataError also if a file is missing or has not its full size."""

    specials = 0  # ids before those of the tokenizer

    def __init__(self, path: str | Path):
        super().__init__(path, TEXT)
        record = self._described_by(TextManifest)
        self.dtype, self.vocab_size, self.eos_id = np.dtype(DTYPES[record.dtype]), record.vocab_size, record.eos_id
        self.tokenizer_path = self.path / record.tokenizer.file
        self.splits = {name: self._open_split(name, split) for name, split in record.splits.items()}
        shards = [shard for split in self.splits.values() for shard in split.shards]
        hashes = {self.tokenizer_path: record.tokenizer.sha256, **{shard.path: shard.sha256 for shard in shards}}
        self.contents = Contents(hashes, self._remedy)
        if self.contents.size(self.tokenizer_path) is None:
            raise DataError(f"{self.tokenizer_path} is missing; {self._remedy}")
        for shard in shards:
            self.contents.check_size(shard.path, shard.tokens * self.dtype.itemsize)

    def _open_split(self, name: str, split: TextSplit) -> TokenSplit:
        shards = [self._shard(name, index, shard) for index, shard in enumerate(split.shards)]
        return TokenSplit(name, shards, self.dtype, self.eos_id, self.vocab_size, split.documents, split.bytes)

    def _shard(self, split: str, index: int, record: ShardRecord) -> Shard:
        file = f"{split}/{index:05d}.bin"
        if record.file != file:  # another path might lead out of the folder
            place = f"splits.{split}.shards[{index}].file"
            raise self._misdescribed(f"{place} is {shortened(record.file)}, expected {file}")
        return Shard(self.path / file, record.tokens, record.sha256)
