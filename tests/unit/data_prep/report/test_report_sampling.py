"""The sample of a report, against documents that a loop over all tokens finds."""

import random

import numpy as np
import pytest

from comera_dist.data.token_split import Shard, TokenSplit
from data_prep.report import sampling
from data_prep.report.sampling import even_runs, sampled_documents

EOS = 9


def written(folder, lengths, shard_tokens=97):
    """A split of documents of these lengths in several shards, and the documents."""
    rng = random.Random(0)
    documents = [[rng.randrange(EOS) for _ in range(length)] for length in lengths]
    tokens = np.array([token for document in documents for token in (*document, EOS)], dtype="<u2")
    shards = []
    for start in range(0, len(tokens), shard_tokens):
        part = tokens[start : start + shard_tokens]
        part.tofile(folder / f"{start}.bin")
        shards.append(Shard(folder / f"{start}.bin", len(part), ""))
    return TokenSplit("train", shards, np.dtype("<u2"), EOS, EOS + 1, len(documents), 1), documents


def beginning_in(documents, runs):
    """The numbers of documents whose first token lies in a run."""
    starts = np.cumsum([0, *(len(document) + 1 for document in documents)])[:-1]
    return [number for number, start in enumerate(starts) if any(a <= start < b for a, b in runs)]


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("wanted", [1, 5, 40, 120, 199])
def test_a_sample_is_the_documents_that_begin_in_its_runs(tmp_path, monkeypatch, block, wanted):
    monkeypatch.setattr(sampling, "_BLOCK", block)
    rng = random.Random(1)
    lengths = [rng.choice([1, 2, 3, 30, 200]) for _ in range(200)]
    split, documents = written(tmp_path, lengths)
    expected = [documents[number] for number in beginning_in(documents, even_runs(split.tokens, wanted / 200))]
    assert [ids.tolist() for ids in sampled_documents(split, wanted)] == expected


@pytest.mark.parametrize("wanted", [200, 10**9])
def test_a_small_split_is_read_whole(tmp_path, wanted):
    split, documents = written(tmp_path, [1, 50, 3] * 66 + [4, 5])
    assert [ids.tolist() for ids in sampled_documents(split, wanted)] == documents


def test_long_documents_are_as_likely_as_short_ones(tmp_path):
    rng = random.Random(2)
    split, documents = written(tmp_path, [rng.choice([2, 500]) for _ in range(2000)], shard_tokens=10**6)
    found = [len(ids) for ids in sampled_documents(split, 500)]
    assert 350 < len(found) < 650
    share = sum(length == 500 for length in found) / len(found)
    assert abs(share - sum(len(document) == 500 for document in documents) / 2000) < 0.1


@pytest.mark.parametrize("total", [1, 10, 63, 64, 65, 1000, 10**12])
@pytest.mark.parametrize("share", [1e-6, 0.01, 0.3, 0.999, 1.0, 5.0])
def test_runs_are_apart_inside_and_as_long_as_asked(total, share):
    runs = even_runs(total, share)
    ends = [place for run in runs for place in run]
    assert ends == sorted(ends)
    assert ends[0] == 0
    assert ends[-1] <= total
    length = sum(stop - start for start, stop in runs)
    assert abs(length - min(1, share) * total) <= max(1, len(runs))
