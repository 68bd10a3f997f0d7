"""Turns of data sets keep to their shares at every place, and repeat after a period."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comera_dist.config.data_section import period_of
from comera_dist.data.turns import turns


def shares_of(weights):
    return [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]


@settings(deadline=None)
@given(weights=st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_after_any_number_of_rows_each_count_is_within_one_of_its_share(weights):
    shares = shares_of(weights)
    turn, before = turns(shares)
    assert len(turn) == period_of(shares)
    counts = [0] * len(shares)
    for place, chosen in enumerate(turn.tolist()):
        assert before[place] == counts[chosen]
        counts[chosen] += 1
        assert all(abs(count - share * (place + 1)) < 1 for count, share in zip(counts, shares, strict=True))
    assert counts == [share * len(turn) for share in shares]


def test_taking_the_one_furthest_behind_would_not_keep_to_the_shares():
    """So the schedule by deadlines is needed."""
    shares, failed = shares_of([20, 20, 6, 1, 1, 20]), 0
    counts = [0] * len(shares)
    for place in range(period_of(shares)):
        lag = [share * (place + 1) - count for share, count in zip(shares, counts, strict=True)]
        counts[lag.index(max(lag))] += 1
        failed += any(abs(c - s * (place + 1)) >= 1 for c, s in zip(counts, shares, strict=True))
    assert failed > 0


@pytest.mark.parametrize(
    ("weights", "expected"), [([1], "a"), ([1, 1], "ab"), (["0.75", "0.25"], "aaab"), (["0.7", "0.3"], "aabaabaaab")]
)
def test_turns_are_spread_evenly(weights, expected):
    assert "".join("abc"[i] for i in turns(shares_of(weights))[0]) == expected


def test_the_longest_period_is_planned():
    turn, _ = turns(shares_of(["0.33333", "0.66667"]))
    assert np.bincount(turn).tolist() == [33333, 66667]
