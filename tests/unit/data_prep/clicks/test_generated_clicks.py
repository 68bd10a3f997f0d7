"""Generated clicks: words follow Zipf's law, labels the planted odds, and the best loss is that of the odds."""

import math
from itertools import pairwise

import numpy as np
import pytest

from comera_dist.errors import DataError
from data_prep.clicks import generated
from data_prep.clicks.generated import GeneratedClicks


def opened(spec, hash_rows):
    return GeneratedClicks.open(spec, {"hash_rows": hash_rows}, block_bytes=0)


def read(source):
    blocks = list(source.clicks(None))
    return [np.concatenate([block[field] for block in blocks]) for field in range(5)]


@pytest.fixture(scope="module")
def log():
    source = GeneratedClicks(70_000, 1, (1000, 7, 2))
    return source, read(source)


def test_every_row_comes_once_and_again_the_same(log):
    source, first = log
    assert first[0].tolist() == list(range(70_000))
    for a, b in zip(first, read(source), strict=True):
        np.testing.assert_array_equal(a, b)
    other = read(GeneratedClicks(70_000, 2, (1000, 7, 2)))
    assert (other[3] != first[3]).mean() > 0.3
    assert len(np.unique(first[2][:, 0])) > 69_000  # blocks do not repeat each other


def test_words_follow_zipfs_law_over_all_rows(log):
    source, (_, _, _, categories_NC, _) = log
    for feature, rows in enumerate(source.table_rows):
        counts = np.bincount(categories_NC[:, feature], minlength=rows)
        assert len(counts) == rows
        assert (counts > 0).all()
        odds = np.log1p(1 / np.arange(1, rows + 1)) / math.log(rows + 1)
        assert odds.sum() == pytest.approx(1)
        frequent = np.sort(counts)[::-1][:10]
        np.testing.assert_allclose(frequent, 70_000 * odds[:10], atol=5 * np.sqrt(70_000 * odds[0]))
    assert np.corrcoef(np.arange(1000), np.bincount(categories_NC[:, 0]))[0, 1] > -0.2  # spread over the table


def log_odds_of(source, dense, categories):
    """One row, one term at a time."""
    weights = [source._weights(feature, np.array([row])) for feature, row in enumerate(categories)]
    numbers = sum(x * source._weights(-1, np.array([f]))[0].item() for f, x in enumerate(dense))
    alone = sum(weight[0].item() for weight in weights)
    pairs = sum(a[1].item() * b[1].item() for a, b in pairwise(weights))
    terms = numbers / math.sqrt(len(dense)) + alone / math.sqrt(len(weights)) + pairs / math.sqrt(len(weights) - 1)
    return generated._BIAS + generated._SCALE * terms


def test_the_loss_is_that_of_the_planted_odds(log):
    source, (_, labels_N, dense_NF, categories_NC, loss_N) = log
    for row in range(0, 70_000, 3500):
        log_odds = log_odds_of(source, dense_NF[row].tolist(), categories_NC[row].tolist())
        wanted = math.log1p(math.exp(-log_odds if labels_N[row] else log_odds))
        assert loss_N[row] == pytest.approx(wanted, rel=1e-4)


def test_labels_are_drawn_from_the_odds(log):
    """The log-loss of true odds is their entropy on average, and 1 in 2 of labels at odds of 1 in 2."""
    _, (_, labels_N, _, _, loss_N) = log
    odds_N = np.where(labels_N == 1, np.exp(-loss_N), 1 - np.exp(-loss_N))
    entropy_N = -(odds_N * np.log(odds_N) + (1 - odds_N) * np.log(1 - odds_N))
    spread = np.std(loss_N - entropy_N) / math.sqrt(len(loss_N))
    assert abs(loss_N.mean() - entropy_N.mean()) < 4 * spread
    for low in np.arange(0, 1, 0.1):
        in_N = (odds_N >= low) & (odds_N < low + 0.1)
        assert labels_N[in_N].mean() == pytest.approx(odds_N[in_N].mean(), abs=4 * 0.5 / math.sqrt(in_N.sum()))
    share = labels_N.mean()
    marginal = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert loss_N.mean() < marginal - 0.05  # there is something to learn


def test_weights_are_of_unit_variance_and_differ_between_features():
    source = GeneratedClicks(1, 0, (10**7, 10**7))
    first, second = (source._weights(feature, np.arange(20_000)) for feature in (0, 1))
    for weights in (*first, *second):
        assert abs(weights.mean()) < 0.05
        assert weights.var() == pytest.approx(1, abs=0.05)
        assert abs(weights).max() <= math.sqrt(3)
    pairs = [(first[0], first[1]), (first[0], second[0]), (first[1], second[1]), (first[0][1:], first[0][:-1])]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 97, 1000, 2**20, 10**7])
def test_ranks_are_scattered_without_collisions(rows):
    step = generated._scatter(rows)
    assert math.gcd(step, rows) == 1
    if rows <= 1000:
        assert sorted(np.arange(1, rows + 1) * step % rows) == list(range(rows))


def test_the_largest_tables_do_not_overflow():
    rows = 2**31 - 1
    _, _, _, categories_NC, _ = read(GeneratedClicks(2000, 0, (rows, rows)))
    assert (categories_NC >= 0).all()
    assert categories_NC.max() > rows // 2


def test_one_size_is_for_criteos_26_tables():
    assert len(opened("10:4", (99,)).table_rows) == 26
    assert opened("10:4", (99, 5)) == GeneratedClicks(10, 4, (99, 5))
    assert len(opened("10", (99, 5)).facts()["categories"]) == 2


@pytest.mark.parametrize("spec", ["", "x", "0", "10:x", "-5", "1e6"])
def test_specs_that_are_not_understood(spec):
    with pytest.raises(DataError, match="generated:ROWS"):
        opened(spec, (5,))


def test_sizes_of_tables_are_needed():
    with pytest.raises(DataError, match="--hash-rows"):
        opened("10", ())
