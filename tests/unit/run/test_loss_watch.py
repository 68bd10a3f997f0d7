"""A spike is a loss far above the last good ones."""

import math
import statistics

import pytest

from comera_dist.run.loss_watch import WINDOW, LossWatch

LOSSES = [3.0 + 0.1 * math.sin(7 * number) for number in range(WINDOW)]


def watch(deviations: float, losses=LOSSES) -> LossWatch:
    made = LossWatch(deviations)
    for loss in losses:
        assert made.accepts(loss)
        made.note(loss, is_good=True)
    return made


def test_the_limit_is_so_many_deviations_above_the_mean():
    limit = statistics.fmean(LOSSES) + 4 * statistics.pstdev(LOSSES)
    assert watch(4).limit == pytest.approx(limit)
    assert watch(4).accepts(limit - 0.01)
    assert not watch(4).accepts(limit + 0.01)


def test_there_is_no_spike_before_a_whole_window_or_without_deviations():
    assert watch(4, LOSSES[1:]).accepts(100.0)
    assert watch(0).accepts(100.0)


@pytest.mark.parametrize("deviations", [0, 4])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_bad(deviations, loss):
    assert not watch(deviations, []).accepts(loss)


def test_bad_losses_do_not_move_the_limit_and_are_counted():
    spiky = watch(4)
    for number in range(1, 4):
        spiky.note(50.0, is_good=False)
        assert spiky.bad_in_a_row == number
    assert spiky.limit == watch(4).limit
    spiky.note(3.0, is_good=True)
    assert spiky.bad_in_a_row == 0


def test_after_it_forgets_a_whole_window_of_other_losses_is_good():
    changed = watch(4)
    changed.forget()
    for loss in LOSSES:
        assert changed.accepts(loss + 50)
        changed.note(loss + 50, is_good=True)
    assert changed.limit == pytest.approx(watch(4).limit + 50)


def test_its_state_goes_through_a_checkpoint():
    first, second = watch(4), LossWatch(4)
    first.note(50.0, is_good=False)
    second.load(first.state())
    assert second.state() == first.state()
    assert second.limit == first.limit
