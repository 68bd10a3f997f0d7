"""The figures of a log record: means over the steps since the last one, also of steps that an earlier start made."""

import json

import pytest
from support import TINY

from comera_dist.config.reader import read_config
from comera_dist.run.unlogged_steps import UnloggedSteps
from comera_dist.runtime.step import StepResult

ROW_TOKENS, PER_TOKEN, PEAK = 16, 50.0, 1e6
RAMP = ["train.batch_ramp.start=2", "train.batch_ramp.steps=6"]  # batches of 2, 2, 4, 4, 6, 6 and then 8 rows
SECONDS = [(0.5, 1.0), (0.25, 3.0), (0.75, 2.0)]


def three_steps():
    """Steps 3 to 5 of a run, of which the second is bad."""
    steps = UnloggedSteps(read_config(None, [*TINY, *RAMP]), PEAK)
    for number, (rows, seconds) in enumerate(zip((4, 4, 6), SECONDS, strict=True), start=3):
        result = StepResult(float(number), 0.5, is_applied=number != 4, targets=number)
        steps.add(result, number / 10, seconds, rows, PER_TOKEN)
    return steps


def test_figures_are_those_by_hand():
    steps = three_steps()
    assert steps.figures(PER_TOKEN) == {
        "targets": 5,
        "loss": 5.0,
        "lr": 0.5,
        "grad_norm": 0.5,
        "tokens_per_second": pytest.approx(14 * ROW_TOKENS / 6),
        "step_ms": 2000.0,
        "flops_per_token": PER_TOKEN,
        "flops_per_second": pytest.approx(PER_TOKEN * 14 * ROW_TOKENS / 6),
        "mfu": pytest.approx(PER_TOKEN * 14 * ROW_TOKENS / 6 / PEAK),
        "data_wait_fraction": 0.25,
    }
    assert steps.seconds_left(5) == pytest.approx(6 / 14 * (6 + 8 + 8))


@pytest.mark.parametrize("lacks", [(), ("rows",), ("flops",), ("rows", "flops")])
def test_another_start_logs_the_same(lacks):
    steps, other = three_steps(), UnloggedSteps(read_config(None, [*TINY, *RAMP]), PEAK)
    state = json.loads(json.dumps(steps.state()))
    for key in lacks:  # as in a checkpoint of an earlier version
        del state[key]
    other.load(state, 5, PER_TOKEN)
    assert other.figures(PER_TOKEN) == steps.figures(PER_TOKEN)


def test_steps_of_another_batch_keep_their_rows():
    steps, now = three_steps(), read_config(None, [*TINY, f"train.batch_tokens={4 * ROW_TOKENS}"])
    other = UnloggedSteps(now, PEAK)
    other.load(json.loads(json.dumps(steps.state())), 5, PER_TOKEN)
    assert other.figures(PER_TOKEN) == steps.figures(PER_TOKEN)
    assert other.seconds_left(5) == pytest.approx(6 / 14 * (4 + 4 + 4))


def test_what_was_logged_counts_no_more():
    steps = three_steps()
    steps.clear()
    steps.add(StepResult(1.0, 1.0), 0.1, (0.0, 4.0), 6, PER_TOKEN)
    assert steps.figures(PER_TOKEN)["step_ms"] == 4000.0
    assert steps.figures(PER_TOKEN)["flops_per_second"] == PER_TOKEN * 6 * ROW_TOKENS / 4


def test_before_the_first_good_step_there_is_nothing_to_save():
    steps = UnloggedSteps(read_config(None, TINY))
    steps.add(StepResult(float("nan"), 1.0, is_applied=False), 0.1, (0.0, 1.0), 8, 1.0)
    assert steps.state() is None


def test_when_all_steps_were_logged_there_is_nothing_to_save():
    steps = three_steps()
    steps.clear()
    assert steps.state() is None
