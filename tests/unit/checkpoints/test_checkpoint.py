"""What is saved is loaded, while the run goes on; what does not fit is refused by name."""

import errno
import json
import os
import shutil
import threading
import time

import pytest
import torch
from checkpointed import engine, model, newest, record, save, save_with, shard, steps_in, truncate
from safetensors.torch import load_file, save_file
from torch import nn

from comera_dist.checkpoints.disk import published
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.read import Checkpoint
from comera_dist.checkpoints.verify import newest_step
from comera_dist.checkpoints.write import Saver
from comera_dist.errors import CheckpointError, TrainingError
from comera_dist.runtime.processes import alone


def test_what_is_saved_is_what_is_loaded(tmp_path):
    save(tmp_path, 10)
    found, said = newest(tmp_path)
    assert (found.manifest["step"], found.optimizer_step, found.run, said) == (
        10,
        7,
        json.loads(json.dumps(record(10))),
        [],
    )
    assert found.gate_step == 3
    module = model()
    found.load_weights(module)
    assert torch.equal(module.a.weight, torch.full((3, 4), 10.0))
    moments = dict(found.moments())
    assert torch.equal(moments["b.core_1"]["exp_avg_sq"], torch.full((1, 2, 1), 12.0))


def test_a_checkpoint_from_before_gates_had_a_step_count_has_that_of_the_optimizer():
    assert Checkpoint(None, {"optimizer_step": 7}, alone()).gate_step == 7


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_the_manifest_may_read_the_shards(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        save(tmp_path, 10)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "step_0000010").iterdir()} == {mode}


def test_none_is_none(tmp_path):
    assert newest(tmp_path / "absent") == (None, [])


def test_a_parameter_that_no_shard_gives_is_an_error(tmp_path):
    """Where files change between the check and the reading: the model would keep memory of any content."""
    save(tmp_path, 10)
    found, _ = newest(tmp_path)
    path = shard(tmp_path, 10)
    save_file({key: t for key, t in load_file(path).items() if key != "weight/b.core_1"}, path)
    with pytest.raises(CheckpointError, match=r"does not hold b\.core_1 as \(1, 2, 1\) of torch\.float32"):
        found.load_weights(model())
    found.manifest["files"].clear()
    with pytest.raises(CheckpointError, match=r"holds no weight of a\.weight"):
        found.load_weights(model())
    shutil.rmtree(found.folder)
    with pytest.raises(CheckpointError, match="cannot be read"):
        newest_like(found).load_weights(model())


def newest_like(found):
    found.manifest["files"]["shard_00000-of-00001.safetensors"] = {}
    return found


def test_folders_of_other_names_are_no_checkpoints(tmp_path):
    save(tmp_path, 10)
    for name in ("step_²", "step_20", "step_0000020_copy", "step_", "damaged_step_0000030"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_0000040").write_text("a file")
    assert [p.name for p in published(tmp_path)] == ["step_0000010"]


def test_the_newest_step_is_that_of_a_checkpoint_that_looks_whole(tmp_path):
    assert newest_step(tmp_path / "absent") == 0
    for step in (10, 20, 30):
        save(tmp_path, step)
    truncate(shard(tmp_path, 30))
    (tmp_path / "step_0000020/manifest.json").write_text("{}")
    assert newest_step(tmp_path) == 10


def test_the_run_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The state of the moment is saved, however long the disk takes, and a second save waits for the first."""
    slow, fsync, saver, mine = threading.Event(), os.fsync, Saver(tmp_path, Kept(9)), engine(10.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (slow.wait(), fsync(descriptor)))
    saver.begin(10, mine, record(10))
    assert saver.poll() is None
    assert steps_in(tmp_path) == [".tmp-step_0000010"]
    for tensors in mine.state(None).values():
        tensors["weight"].zero_()
    threading.Timer(0.2, slow.set).start()
    save_with(saver, 20)
    assert steps_in(tmp_path) == ["step_0000010", "step_0000020"]
    shutil.rmtree(tmp_path / "step_0000020")
    module = model()
    newest(tmp_path)[0].load_weights(module)
    assert torch.equal(module.a.weight, torch.full((3, 4), 10.0))


def test_what_was_logged_before_a_checkpoint_survives_a_loss_of_power_as_it_does(tmp_path, monkeypatch):
    log, order = tmp_path / "metrics.jsonl", []
    log.write_text("logged\n")
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda file: (order.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    monkeypatch.setattr(os, "rename", lambda *paths: (order.append(str(paths[1])), rename(*paths)))
    root = tmp_path / "checkpoints"
    save_with(Saver(root, Kept(9), logs=[log, tmp_path / "not_there.jsonl"]), 10)
    assert order.index(str(log)) < order.index(str(root / "step_0000010"))


def poll_until_it_ends(saver):
    while saver.poll() is None:
        time.sleep(0.01)


def test_a_save_that_fails_in_the_background_is_told_at_the_next_step(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    saver = Saver(tmp_path, Kept(9))
    monkeypatch.setattr(os, "fsync", refuse)
    saver.begin(10, engine(10.0), record(10))
    with pytest.raises(CheckpointError, match="No space left on device"):
        poll_until_it_ends(saver)
    assert steps_in(tmp_path) == []


def test_nothing_is_saved_where_weights_differ(tmp_path):
    def differ():
        raise TrainingError("they differ")

    parted = engine(20.0)
    parted.check_weights = differ
    save(tmp_path, 10)
    with pytest.raises(TrainingError):
        Saver(tmp_path, Kept(9)).begin(20, parted, record(20))
    assert steps_in(tmp_path) == ["step_0000010"]


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path):
    save(tmp_path, 10)
    other = model()
    other.b.core_1 = nn.Parameter(torch.zeros(1, 2, 4))
    with pytest.raises(CheckpointError, match=r"holds b.core_1 as \(1, 2, 1\) and the model has \(1, 2, 4\)"):
        newest(tmp_path)[0].load_weights(other)
