"""A run may lose patience with a validation loss that does not improve."""

import json
import math

import pytest

from comera_dist.config.reader import read_config
from comera_dist.config.train_section import StopEarly
from comera_dist.errors import ConfigError
from comera_dist.run.patience import Patience


def judged(losses, **keys) -> Patience:
    patience = Patience(StopEarly(**keys))
    for number, loss in enumerate(losses, start=1):
        patience.judge(10 * number, loss)
    return patience


def test_it_runs_out_after_validations_in_a_row_without_an_improvement():
    assert not judged([3.0, 2.0, 2.5, 2.1, 1.9, 1.9], patience=2).is_exhausted
    assert judged([3.0, 2.0, 2.5, 2.1], patience=2).is_exhausted
    assert judged([3.0, 2.0, 2.0], patience=1).is_exhausted, "an equal loss is no improvement"


def test_small_improvements_add_up_to_one():
    falling = [3.0, 2.75, 2.5, 2.25]
    assert judged(falling, patience=1, min_delta=0.3).is_exhausted
    patience = judged(falling, patience=2, min_delta=0.5)
    assert (patience.best, patience.best_step, patience.fruitless) == (2.5, 30, 1)


def test_a_step_counts_once_and_a_step_that_is_passed_over_not_at_all():
    patience = judged([3.0, 3.0], patience=2)
    patience.judge(20, 3.0)
    assert patience.fruitless == 1
    patience.pass_over(30)
    patience.judge(30, 3.0)
    assert (patience.fruitless, patience.judged_step) == (1, 30)


def test_without_a_number_it_is_endless():
    assert not judged([1.0] * 99).is_exhausted


@pytest.mark.parametrize("losses", [[], [3.0, 2.0, 2.0]])
def test_a_checkpoint_holds_it(losses):
    first, second = judged(losses, patience=2), Patience(StopEarly(patience=2))
    second.load(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert second.state() == first.state()
    assert math.isinf(second.best) == (not losses)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["train.stop_early.min_delta=0.1"], "min_delta = 0.1 has no effect without train.stop_early.patience"),
        (["train.stop_early.patience=1", "eval.every=0"], "eval.every = 0 makes none before the end"),
        (["train.stop_early.patience=2", "eval.every=50"], "cannot run out within 2 validations"),
    ],
)
def test_a_rule_that_cannot_end_the_run_is_refused(keys, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_config(None, ["train.steps=100", *keys])
