"""Which checkpoints are deleted, and which stay."""

import pytest
from checkpointed import flip, newest, save, save_with, shard, steps_in, truncate

from comera_dist.checkpoints.disk import published
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.write import Saver


def test_only_the_newest_are_kept(tmp_path):
    for step in (30, 9_999_999, 10_000_000, 10_000_001):
        save(tmp_path, step, keep=2)
    assert [p.name for p in published(tmp_path)] == ["step_10000001", "step_10000000"]


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("damage", [flip, truncate], ids=["flipped", "truncated"])
def test_damaged_ones_do_not_push_out_whole_ones(tmp_path, keep, damage):
    """Two damaged newer folders beside a checkpoint that was restored by hand."""
    for step in (10, 20, 30):
        save(tmp_path, step)
        if step > 10:
            damage(shard(tmp_path, step))
    save(tmp_path, 15, keep, resumed=newest(tmp_path)[0])
    whole = ["step_0000010", "step_0000015"][-keep:]
    assert steps_in(tmp_path) == ["damaged_step_0000020", "damaged_step_0000030", *whole]
    assert newest(tmp_path)[0].manifest["step"] == 15
    assert newest(tmp_path)[1] == []


def test_the_step_of_a_damaged_one_can_be_saved_again(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    flip(shard(tmp_path, 20))
    flip(shard(tmp_path, 30))
    saver = Saver(tmp_path, Kept(2), newest(tmp_path)[0])
    for step in (20, 30):
        save_with(saver, step)
    assert steps_in(tmp_path) == ["damaged_step_0000020", "damaged_step_0000030", "step_0000020", "step_0000030"]
    assert newest(tmp_path)[0].manifest["step"] == 30


def test_what_was_resumed_from_stays_until_as_many_new_ones_are_whole(tmp_path):
    for step in (12, 14, 16, 20):
        save(tmp_path, step)
    truncate(shard(tmp_path, 16))
    saver, left = Saver(tmp_path, Kept(3), newest(tmp_path)[0]), []
    for step in (30, 40, 50):
        save_with(saver, step)
        left.append([int(path.name[5:]) for path in published(tmp_path)])
    assert left == [[30, 20, 16, 14], [40, 30, 20], [50, 40, 30]]


def test_a_newer_folder_of_unknown_origin_is_left_and_does_not_count(tmp_path):
    save(tmp_path, 10)
    saver = Saver(tmp_path, Kept(1), newest(tmp_path)[0])
    save(tmp_path, 90)
    for step in (20, 30):
        save_with(saver, step)
    assert steps_in(tmp_path) == ["step_0000030", "step_0000090"]


def test_permanent_ones_are_never_deleted(tmp_path):
    saver = Saver(tmp_path, Kept(1, every=20))
    for step in range(10, 65, 5):
        save_with(saver, step)
    assert steps_in(tmp_path) == ["step_0000020", "step_0000040", "step_0000060"]
    save_with(saver, 65)
    assert steps_in(tmp_path) == ["step_0000020", "step_0000040", "step_0000060", "step_0000065"]


def test_the_best_one_stays_until_another_is(tmp_path):
    kept = Kept(1, best=10)
    saver, left = Saver(tmp_path, kept), []
    for step in (10, 20, 30, 40, 50):
        save_with(saver, step)
        kept.best = 30 if step == 30 else kept.best  # as a run does when the better one is whole
        left.append([int(path.name[5:]) for path in published(tmp_path)])
    assert left == [[10], [20, 10], [30, 10], [40, 30], [50, 30]]


def test_a_namesake_is_never_deleted(tmp_path):
    for _ in range(3):
        save(tmp_path, 10)
    assert steps_in(tmp_path) == ["damaged_step_0000010", "damaged_step_0000010_2", "step_0000010"]
    saver = Saver(tmp_path, Kept(1), newest(tmp_path)[0])
    saver.begin(10, None, {})  # the run resumed from it: there is nothing new to save
    assert len(steps_in(tmp_path)) == 3
