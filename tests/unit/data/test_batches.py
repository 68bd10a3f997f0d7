"""The order of data: a permutation each epoch, equal for any number of processes, resumable at any step."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comera_dist.data.batches import Cursor, TrainBatches, ValidationBatches
from comera_dist.data.token_split import Shard, TokenSplit
from comera_dist.data.windows import TrainWindows, ValidationWindows
from comera_dist.errors import ConfigError, DataError
from comera_dist.ops.permutation import permute
from comera_dist.ops.targets import IGNORED_TARGET

SEQ, EOS = 8, 999


def split_of(folder, tokens: int) -> TokenSplit:
    """Tokens 0..tokens-1 in two shards; a token is its own position."""
    border, dtype = tokens // 3, np.dtype("<u4")
    shards = []
    for name, start, stop in (("a", 0, border), ("b", border, tokens)):
        np.arange(start, stop, dtype=dtype).tofile(folder / name)
        shards.append(Shard(folder / name, stop - start, ""))
    return TokenSplit("train", shards, dtype, EOS, vocab_size=2**32, documents=1, bytes=tokens * 3)


@pytest.fixture
def split(tmp_path):
    return split_of(tmp_path, 250)


def train_batches(split, process_index=0, num_processes=1, micro_batch=12, seed=3, seq_len=SEQ, fingerprint="corpus"):
    windows = TrainWindows(split, seq_len)
    return TrainBatches(windows, fingerprint, seq_len, 12, micro_batch, process_index, num_processes, seed)


def global_starts(split, sequences_done, num_processes, micro_batch):
    """First token of every sequence of a step, in global order, gathered from all processes."""
    shares = [
        train_batches(split, index, num_processes, micro_batch).step(sequences_done) for index in range(num_processes)
    ]
    rounds = zip(*shares, strict=True)
    return [int(start) for batches in rounds for batch in batches for start in batch.inputs_BS[:, 0]]


@given(n=st.integers(1, 700), key=st.tuples(st.integers(0, 2**63), st.integers(0, 50)))
def test_permute_is_a_bijection(n, key):
    assert sorted(permute(np.arange(n), n, key).tolist()) == list(range(n))


def test_permute_is_the_same_for_one_value_and_for_many():
    many = permute(np.arange(1000), 1000, (1, 2))
    assert [int(permute(np.array([index]), 1000, (1, 2))[0]) for index in range(50)] == many[:50].tolist()


def test_permute_looks_random_and_depends_on_every_part_of_the_key():
    n = 50_000
    images = [permute(np.arange(n), n, key) for key in ((0, 0), (0, 1), (1, 0))]
    for image in images:
        assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.02
        assert abs(np.mean(np.abs(np.diff(image))) / (n / 3) - 1) < 0.02  # mean distance of independent draws
    for a, b in pairwise(images):
        assert np.mean(a == b) < 0.001


def test_permute_handles_a_corpus_of_a_trillion_windows():
    assert len(set(permute(np.arange(1000) + 10**12, 2 * 10**12, (0, 0)).tolist())) == 1000


def test_targets_are_the_next_tokens(split):
    batch = train_batches(split).step(0)[0]
    assert batch.inputs_BS.shape == batch.targets_BS.shape == (12, SEQ)
    assert batch.inputs_BS.dtype == torch.int64
    assert torch.equal(batch.targets_BS, batch.inputs_BS + 1)
    assert (batch.inputs_BS[:, 0] % SEQ == 0).all()


def test_every_epoch_reads_every_window_once_in_its_own_order(split):
    windows = len(TrainWindows(split, SEQ))
    assert windows == (250 - 1) // SEQ
    starts = [start for step in range(31) for start in global_starts(split, 12 * step, 1, 12)]
    epochs = [starts[first : first + windows] for first in range(0, 12 * windows, windows)]
    assert all(sorted(epoch) == [window * SEQ for window in range(windows)] for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("num_processes", "micro_batch"), [(1, 1), (1, 4), (2, 6), (2, 3), (3, 2), (4, 3), (12, 1)])
def test_the_global_order_is_the_same_for_any_processes(split, num_processes, micro_batch):
    for sequences_done in (0, 12, 24, 36, 600):  # 24 crosses the end of an epoch
        expected = global_starts(split, sequences_done, 1, 12)
        assert global_starts(split, sequences_done, num_processes, micro_batch) == expected


@pytest.mark.parametrize("step", [0, 1, 5, 100])
def test_resume_continues_the_order_with_other_processes(split, step):
    cursor = train_batches(split, 1, 4, 3).cursor(12 * step)
    assert cursor == Cursor(seed=3, epoch=12 * step // 31, tokens=12 * step * SEQ, fingerprint="corpus")
    resumed = train_batches(split, 0, 2, 3).resume(cursor)
    assert resumed == 12 * step
    assert global_starts(split, resumed, 2, 3) == global_starts(split, 12 * step, 4, 3)


def test_a_cursor_with_keys_of_a_later_version_is_read(split):
    cursor = train_batches(split).cursor(60)
    assert Cursor.of_record({**vars(cursor), "shard": 3}) == cursor


def test_resume_refuses_another_corpus_seed_or_length(split):
    cursor = train_batches(split).cursor(60)
    for change, message in (
        ({"fingerprint": "other"}, "was trained on corpus corpus, this run reads other"),
        ({"seed": 4}, "has seed 3, this run has 4"),
        ({"seq_len": 7}, "sequences of 7"),
        ({"seq_len": 16}, "sequences of 16"),
    ):
        with pytest.raises(DataError, match=message):
            train_batches(split, micro_batch=12, **change).resume(cursor)


def test_an_impossible_batch_or_corpus_is_refused(split):
    with pytest.raises(ConfigError, match=r"not a multiple of micro_batch x processes = 8; the nearest are 8 and 16"):
        train_batches(split, num_processes=2, micro_batch=4)
    with pytest.raises(DataError, match="250 tokens, fewer than one sequence of 250"):
        TrainWindows(split, 250)
    assert len(TrainWindows(split, 249)) == 1


def test_a_step_reads_its_own_rows_alone(tmp_path, monkeypatch):
    windows, read = TrainWindows(split_of(tmp_path, 3_000_000), 256), []
    batch = windows.batch
    monkeypatch.setattr(windows, "batch", lambda row_B, draw_B: read.append(len(row_B)) or batch(row_B, draw_B))
    batches = TrainBatches(windows, "corpus", 256, 32, 8, 1, 2, seed=0)
    for step in (0, 7, 300):
        read.clear()
        batches.step(32 * step)
        assert read == [8, 8]  # two micro batches of this process, of the 32 rows of both


def validation(split, num_processes=1, batch_size=4, **options):
    windows = ValidationWindows(split, SEQ)
    return [ValidationBatches(windows, batch_size, index, num_processes, **options) for index in range(num_processes)]


@pytest.mark.parametrize("tokens", [3, 8, 9, 64, 250])
@pytest.mark.parametrize("num_processes", [1, 2, 5])
def test_validation_predicts_every_token_once(tmp_path, tokens, num_processes):
    shares = validation(split_of(tmp_path, tokens), num_processes)
    seen = []
    for share in shares:
        batches = list(share)
        assert len(batches) == len(share) == len(shares[0])
        for inputs_BS, targets_BS in batches:
            assert inputs_BS.shape == targets_BS.shape == (4, SEQ)
            counted_BS = targets_BS != IGNORED_TARGET
            before_BS = torch.where(targets_BS == 0, EOS, targets_BS - 1)
            assert torch.equal(inputs_BS[counted_BS], before_BS[counted_BS])
            seen += targets_BS[counted_BS].tolist()
    assert sorted(seen) == list(range(tokens))


def test_validation_on_a_subset_is_spread_evenly_and_equal_for_any_processes(split):
    def targets(num_processes):
        batches = [batch for share in validation(split, num_processes, max_rows=10) for batch in share]
        return sorted(t for batch in batches for t in batch.targets_BS.flatten().tolist() if t != IGNORED_TARGET)

    assert len(targets(1)) == 80
    assert targets(1) == targets(3)
    assert {target // 84 for target in targets(1)} == {0, 1, 2}
    assert [len(validation(split, 1, max_rows=rows)[0]) for rows in (1, 10**9)] == [1, 8]


def test_an_empty_validation_split_is_refused():
    with pytest.raises(DataError, match="--valid-source"):
        ValidationWindows(TokenSplit("valid", [], np.dtype("<u2"), EOS, vocab_size=2**16, documents=0, bytes=0), SEQ)
