"""A corpus is opened only when it is whole, and read as one row of tokens across its shards."""

import hashlib
import json
import os
import re

import numpy as np
import pytest

from comera_dist.data.shards import Corpus
from comera_dist.errors import DataError


def write_corpus(folder, shards=((0, 5), (5, 6), (6, 20)), dtype="<u2"):
    """Tokens 0..19 in three shards."""
    (folder / "train").mkdir(parents=True)
    (folder / "tokenizer.model").write_bytes(b"model")
    entries = []
    for index, (start, stop) in enumerate(shards):
        raw = np.arange(start, stop, dtype=dtype).tobytes()
        (folder / "train" / f"{index:05d}.bin").write_bytes(raw)
        entry = {"file": f"train/{index:05d}.bin", "tokens": stop - start, "documents": 1, "bytes": 9}
        entries.append({**entry, "sha256": hashlib.sha256(raw).hexdigest()})
    split = {"tokens": 20, "documents": 3, "bytes": 27, "shards": entries}
    manifest = {
        "format": 1,
        "dtype": {"<u2": "uint16", "<u4": "uint32"}[dtype],
        "vocab_size": 50,
        "eos_id": 2,
        "tokenizer": {"file": "tokenizer.model", "sha256": hashlib.sha256(b"model").hexdigest()},
        "source": "test",
        "splits": {"train": split},
        "skipped": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_every_range_reads_across_shard_borders(tmp_path, dtype):
    split = Corpus(write_corpus(tmp_path, dtype=dtype)).split("train")
    assert (split.tokens, split.documents, split.bytes, split.eos_id) == (20, 3, 27, 2)
    for start in range(21):
        for stop in range(start, 21):
            tokens = split.read(start, stop)
            assert tokens.dtype == np.int64
            assert tokens.tolist() == list(range(start, stop))
    with pytest.raises(IndexError):
        split.read(3, 21)


def test_attributes_and_fingerprint(tmp_path):
    corpus = Corpus(write_corpus(tmp_path))
    assert (corpus.vocab_size, corpus.eos_id, corpus.dtype.itemsize, list(corpus.splits)) == (
        50,
        2,
        2,
        ["train"],
    )
    assert corpus.tokenizer_path == tmp_path / "tokenizer.model"
    before = corpus.fingerprint
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(dict(reversed(manifest.items())), indent=3))
    assert Corpus(tmp_path).fingerprint == before
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "eos_id": 3}))
    assert Corpus(tmp_path).fingerprint != before


def test_verify_finds_a_changed_byte(tmp_path):
    corpus = Corpus(write_corpus(tmp_path))
    corpus.contents.verify()
    shard = tmp_path / "train" / "00002.bin"
    shard.write_bytes(b"\xff" + shard.read_bytes()[1:])
    with pytest.raises(DataError, match=r"00002\.bin is damaged.*--overwrite"):
        Corpus(tmp_path).contents.verify()
    (tmp_path / "tokenizer.model").write_bytes(b"other")
    with pytest.raises(DataError, match=r"tokenizer\.model is damaged"):
        corpus.contents.verify()


def test_a_missing_corpus_names_the_command(tmp_path):
    with pytest.raises(DataError, match=r"no data set at .*make corpus.*tokenize_corpus\.py"):
        Corpus(tmp_path / "none")
    with pytest.raises(DataError, match=rf"no data set at none, seen from {re.escape(os.getcwd())} \(manifest"):
        Corpus("none")
    (tmp_path / ".partial").mkdir()
    with pytest.raises(DataError, match="not finished; run the same"):
        Corpus(tmp_path)


def test_a_truncated_or_missing_shard_is_refused_with_sizes(tmp_path):
    shard = write_corpus(tmp_path) / "train" / "00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"00000\.bin has 9 bytes, the manifest says 10; .*--overwrite"):
        Corpus(tmp_path)
    shard.unlink()
    with pytest.raises(DataError, match=r"00000\.bin is missing"):
        Corpus(tmp_path)


@pytest.mark.parametrize("change", [{"format": 9}, {"dtype": "float16"}, {"splits": 3}, {"tokenizer": None}])
def test_a_manifest_that_is_none_is_refused(tmp_path, change):
    file = write_corpus(tmp_path) / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(DataError, match=f"does not describe text: {next(iter(change))} is"):
        Corpus(tmp_path)
    for content in ("[]", "{", "{}"):
        file.write_text(content)
        with pytest.raises(DataError, match=r"manifest\.json does not describe text: (it|format) is"):
            Corpus(tmp_path)


def test_data_of_another_kind_are_named(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": 1, "kind": "pairs"}')
    with pytest.raises(DataError, match=r"holds pairs, and this model reads text; .*tokenize_corpus\.py"):
        Corpus(tmp_path)


def test_an_unknown_split_and_a_missing_tokenizer_are_refused(tmp_path):
    corpus = Corpus(write_corpus(tmp_path))
    with pytest.raises(DataError, match="no split 'test'; it has train"):
        corpus.split("test")
    corpus.tokenizer_path.unlink()
    with pytest.raises(DataError, match=r"tokenizer\.model is missing"):
        Corpus(tmp_path)
