"""The rows of each step while the batch grows, against a loop over the definition."""

import pytest
from support import TINY

from comera_dist.config.batch_sizes import BatchSizes
from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError

RAMPS = [(8, 8, 0), (8, 2, 3), (8, 2, 9), (8, 2, 10), (8, 1, 4), (12, 4, 1), (96, 3, 7), (96, 3, 100), (6, 3, 5)]
KEYS = ["train.batch_ramp.start=2", "train.batch_ramp.steps=4"]


def slow_sizes(whole, start, steps, count):
    """Each multiple of `start` below `whole` takes an equal share of the steps."""
    multiples = [*range(start, whole, start)]
    return [multiples[int(len(multiples) * step / steps)] if step < steps else whole for step in range(count)]


@pytest.mark.parametrize("ramp", RAMPS)
def test_sizes_and_sums_are_those_of_the_definition(ramp):
    sizes, expected = BatchSizes(*ramp), slow_sizes(*ramp, count=130)
    assert [sizes.at(step) for step in range(130)] == expected
    assert [sizes.before(step) for step in range(130)] == [sum(expected[:step]) for step in range(130)]
    assert expected == sorted(expected)


@pytest.mark.parametrize("ramp", RAMPS)
def test_steps_are_the_fewest_that_read_so_many_rows(ramp):
    sizes = BatchSizes(*ramp)
    for rows in (1, 2, 3, 7, 24, 100, 401):
        steps = sizes.steps_of(rows)
        assert sizes.before(steps - 1) < rows <= sizes.before(steps)


def test_long_ramps_take_no_time():
    sizes = BatchSizes(10**9, 1, 10**9)
    assert sizes.before(10**9) == 10**9 * (10**9 - 1) // 2 + 1
    assert sizes.steps_of(10**17) < 10**9


def test_a_run_of_tokens_counts_the_smaller_steps():
    budget = ["train.steps=null", "train.tokens=1280"]  # 80 rows of 16 tokens
    assert read_config(None, [*TINY, *budget]).total_steps == 10
    ramped = read_config(None, [*TINY, *budget, *KEYS])  # 2, 2, 4, 6 and then 8 rows
    assert ramped.total_steps == 4 + 9
    assert ramped.total_tokens == (14 + 9 * 8) * 16


def test_a_micro_batch_divides_the_smallest_batch():
    config = read_config(None, [*TINY, *KEYS])
    assert (config.micro_batch(1), config.micro_batch(2)) == (2, 1)
    with pytest.raises(ConfigError, match=r"train.batch_ramp.start = 2 is not a multiple of .* = 4; nearest: 4 or 8"):
        config.micro_batch(4)
    with pytest.raises(ConfigError, match=r"train.batch_tokens = 128 is not a multiple of .* = 48; nearest: 96 or 144"):
        read_config(None, [*TINY, "train.micro_batch=3"]).micro_batch(1)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["train.batch_ramp.start=2"], r"start = 2 has no effect without train\.batch_ramp\.steps"),
        (["train.batch_ramp.steps=2"], r"steps = 2 has no effect without train\.batch_ramp\.start"),
        (["train.batch_ramp={start: 3, steps: 2}"], "start = 3 does not divide the batch of 8 sequences"),
        (["train.batch_ramp={start: 8, steps: 2}"], "start = 8 does not divide the batch of 8 sequences"),
        (["train.batch_ramp={start: 2, steps: 8}"], "steps = 8 leaves no step of the whole batch within 8 steps"),
    ],
)
def test_ramps_that_make_no_sense_are_refused(keys, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_config(None, [*TINY, *keys])
