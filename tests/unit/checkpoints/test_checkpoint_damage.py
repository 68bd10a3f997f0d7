"""A damaged checkpoint is found, named and passed over."""

import json
import os
import pickle
import random
import shutil

import pytest
import torch
from checkpointed import flip, model, newest, put, rewrite, save, shard, truncate

from comera_dist.checkpoints import read
from comera_dist.checkpoints.read import find_checkpoint
from comera_dist.checkpoints.verify import verify
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime.processes import alone


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(truncate, "bytes instead of"), (flip, "sha256"), (os.unlink, "is missing")],
    ids=["truncated", "flipped", "missing"],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path, damage, reason):
    save(tmp_path, 10)
    save(tmp_path, 20)
    damage(shard(tmp_path, 20))
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert len(said) == 1
    assert "step_0000020 is passed over" in said[0]
    assert reason in said[0]


def test_a_checkpoint_that_its_run_deletes_meanwhile_is_not_damaged(tmp_path, monkeypatch):
    """As launch/evaluate.py may meet one of a run that is being trained."""

    def verify_late(folder, processes):
        if folder == tmp_path / "step_0000010":
            save(tmp_path, 20)
            shutil.rmtree(folder)
        return verify(folder, processes)

    save(tmp_path, 10)
    monkeypatch.setattr(read, "verify", verify_late)
    found, said = newest(tmp_path)
    assert (found.manifest["step"], said) == (20, [])


def disturbed(content, random):
    """`content` with one flipped bit, or cut off."""
    place = random.randrange(len(content))
    if random.random() < 0.05:
        return content[:place]
    changed = bytearray(content)
    changed[place] ^= 1 << random.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("is_old", [False, True], ids=["format 2", "format 1"])
def test_no_flipped_bit_of_a_manifest_is_accepted_or_ends_in_a_traceback(tmp_path, is_old):
    """In format 1 numbers that nothing else knows may pass, but no wrong weight does."""
    save(tmp_path, 10)
    save(tmp_path, 20)
    if is_old:
        rewrite(tmp_path, 20, lambda manifest: None)
    path, generator = tmp_path / "step_0000020/manifest.json", random.Random(0)
    content, passed_over = path.read_bytes(), 0
    for _ in range(400):
        path.write_bytes(disturbed(content, generator))
        found, said = newest(tmp_path)
        passed_over += len(said)
        if found.manifest["step"] == 20:
            assert is_old or found.manifest == json.loads(content)
            module = model()
            found.load_weights(module)
            assert torch.equal(module.a.weight, torch.full((3, 4), 20.0))
    assert passed_over > (200 if is_old else 395)


def test_no_damaged_shard_is_accepted_or_ends_in_a_traceback(tmp_path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    path, generator = shard(tmp_path, 20), random.Random(0)
    content = path.read_bytes()
    for _ in range(100):
        path.write_bytes(disturbed(content, generator))
        found, said = newest(tmp_path)
        assert (found.manifest["step"], len(said)) == (10, 1)


@pytest.mark.parametrize("name", ["manifest.json", "shard_00000-of-00001.safetensors"])
def test_a_file_that_cannot_be_read_is_damage(tmp_path, name):
    save(tmp_path, 10)
    save(tmp_path, 20)
    path = tmp_path / "step_0000020" / name
    size = path.stat().st_size
    path.unlink()
    path.mkdir()  # for root no permission is missing
    if name != "manifest.json":
        rewrite(tmp_path, 20, put(path.stat().st_size, "files", name, "bytes"))
    found, said = newest(tmp_path)
    assert (found.manifest["step"], size > 0) == (10, True)
    assert f"{name} cannot be read (Is a directory" in said[0]


def test_the_damaged_checkpoint_of_a_named_step_is_not_replaced_by_another(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    truncate(shard(tmp_path, 20))
    assert find_checkpoint(tmp_path, alone(), step=10).manifest["step"] == 10
    with pytest.raises(CheckpointError, match=r"step_0000020 is damaged \(.* bytes instead of .*\); .* another step"):
        find_checkpoint(tmp_path, alone(), step=20)


def test_a_run_never_starts_afresh_over_damaged_checkpoints(tmp_path):
    save(tmp_path, 10)
    truncate(shard(tmp_path, 10))
    with pytest.raises(CheckpointError, match=r"all 1 checkpoints .* are damaged; restore one"):
        newest(tmp_path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_no_code_in_a_checkpoint_runs(tmp_path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    bomb = Bomb()
    bomb.path = str(tmp_path / "exploded")
    path = shard(tmp_path, 20)
    path.write_bytes(pickle.dumps(bomb))
    rewrite(tmp_path, 20, put({"bytes": path.stat().st_size, "sha256": file_sha256(path)}, "files", path.name))
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "is not a safetensors file" in said[0]
    assert not (tmp_path / "exploded").exists()
