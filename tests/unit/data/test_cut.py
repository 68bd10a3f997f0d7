"""Data that are cut after they were opened: a DataError, where reading a map would end the process with SIGBUS."""

import os

import numpy as np
import pytest
from support import make_clicks, make_corpus, make_pairs

from comera_dist.data.clicks import ClickCorpus, ClickExamples
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.token_split import Shard, TokenSplit
from comera_dist.data.windows import TrainWindows
from comera_dist.errors import DataError

EXAMPLES = {
    "00000.bin": (make_corpus, lambda folder: TrainWindows(Corpus(folder).split("train"), 16)),
    "tokens.bin": (make_pairs, lambda folder: LabelledPairs(PairCorpus(folder), "train", 16)),
    "categories.bin": (make_clicks, lambda folder: ClickExamples(ClickCorpus(folder), "train")),
}


@pytest.mark.parametrize("file", EXAMPLES)
def test_a_cut_is_a_sentence_where_the_rows_are_wanted(tmp_path, file):
    make, open_examples = EXAMPLES[file]
    examples = open_examples(make(tmp_path / "data"))
    row_B = np.array([0, len(examples) - 1])
    examples.batch(row_B, row_B)
    os.truncate(tmp_path / "data/train" / file, 0)
    with pytest.raises(DataError, match=rf"{file} (was cut|has 0 bytes)"):
        examples.batch(row_B, row_B)


def test_a_shard_is_opened_when_it_is_read_and_its_removal_afterwards_does_no_harm(tmp_path):
    split = Corpus(make_corpus(tmp_path / "data")).split("train")
    before = split.read(0, 50).tolist()
    (tmp_path / "data/train/00000.bin").unlink()
    assert split.read(0, 50).tolist() == before
    other = Corpus(make_corpus(tmp_path / "other")).split("train")
    (tmp_path / "other/train/00000.bin").unlink()
    with pytest.raises(DataError, match=r"00000\.bin cannot be read \(No such file or directory\)"):
        other.read(0, 50)


def test_files_of_many_shards_do_not_stay_open(tmp_path):
    shards = []
    for index in range(20):
        np.full(4, index, dtype="<u2").tofile(tmp_path / str(index))
        shards.append(Shard(tmp_path / str(index), 4, ""))
    split = TokenSplit("train", shards, np.dtype("<u2"), 0, vocab_size=50, documents=20, bytes=80, open_files=3)
    before = len(os.listdir("/proc/self/fd"))
    assert split.read(0, 80).tolist() == np.repeat(np.arange(20), 4).tolist()
    assert len(os.listdir("/proc/self/fd")) <= before + 3


def test_a_shard_that_falls_out_of_the_cache_stays_open_while_it_is_read(tmp_path, monkeypatch):
    path = make_corpus(tmp_path / "data") / "train/00000.bin"
    split = Corpus(tmp_path / "data").split("train")
    before = split.read(0, 50).tolist()
    monkeypatch.setattr(split, "_open", lambda index: path.open("rb", buffering=0))  # no cache holds it
    assert split.read(0, 50).tolist() == before
