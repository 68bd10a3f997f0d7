"""Learning-rate schedules against hand-computed values."""

import pytest

from comera_dist.config.tree import Schedule
from comera_dist.run.schedule import lr_fraction


def curve(steps=10, **keys):
    return [lr_fraction(Schedule(**keys), step, steps) for step in range(steps)]


def test_warmup_is_linear_and_reaches_one():
    assert curve(warmup_steps=4, kind="constant") == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]


def test_linear_ends_at_its_final_fraction():
    assert curve(kind="linear", steps=5, final_lr_fraction=0.2) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_in_the_middle():
    assert curve(kind="cosine", steps=5, final_lr_fraction=0.0) == pytest.approx(
        [1, 0.853553, 0.5, 0.146447, 0], abs=1e-6
    )


def test_wsd_is_stable_and_then_decays():
    found = curve(kind="wsd", warmup_steps=2, decay_fraction=0.3, final_lr_fraction=0.0)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 1, 0.5, 0])


@pytest.mark.parametrize("kind", ["cosine", "wsd", "linear", "constant"])
def test_a_run_of_one_step_has_a_learning_rate(kind):
    assert curve(kind=kind, steps=1) == [1.0]
