"""A manifest of a checkpoint names files of its own folder alone, and links lead nothing out of it."""

import json
import os
import shutil

import pytest
from checkpointed import model, newest, put, rewrite, save, shard

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError

OUTSIDE = [
    "../shard_00000-of-00001.safetensors",
    "/etc/hostname",
    "a/../../shard_00000-of-00001.safetensors",
    "shard_00000-of-00001.safetensors/../x",
    "shard_00000-of-00001.safetensors\0",
    "shard_00000-of-00001.safetensors\n",
    "..",
    "",
]


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_a_file_outside_of_the_checkpoint_is_not_read(tmp_path, name):
    save(tmp_path, 10)
    save(tmp_path, 20)
    path = shard(tmp_path, 20)
    (tmp_path / path.name).write_bytes(path.read_bytes())  # where the first name leads to
    record = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    rewrite(tmp_path, 20, put({name: record}, "files"))
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "step_0000020 is passed over: its manifest.json is not one: files." in said[0]


def test_a_tensor_names_no_file_outside(tmp_path):
    save(tmp_path, 10)
    rewrite(tmp_path, 10, put("../x.safetensors", "tensors", "a.weight", "file"))
    with pytest.raises(CheckpointError, match="all 1 checkpoints"):
        newest(tmp_path)


def test_what_a_link_leads_to_must_have_the_hash(tmp_path):
    """People keep shards on other disks behind links. A link to anything else is damage, and is not shown."""
    save(tmp_path, 10)
    path = shard(tmp_path, 10)
    elsewhere = shutil.move(path, tmp_path / "elsewhere.safetensors")
    path.symlink_to(elsewhere)
    newest(tmp_path)[0].load_weights(model())
    other = tmp_path / "private"
    other.write_bytes(b"p" * os.stat(elsewhere).st_size)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(CheckpointError, match="all 1 checkpoints"):
        newest(tmp_path)


def test_deleting_a_checkpoint_deletes_nothing_behind_a_link(tmp_path):
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "checkpoints"
    save(elsewhere, 10)
    root.mkdir()
    (root / "step_0000010").symlink_to(elsewhere / "step_0000010")
    for step in (20, 30, 40):
        save(root, step, keep=1)
    assert not (root / "step_0000010").exists()
    assert shard(elsewhere, 10).exists()
    assert json.loads((elsewhere / "step_0000010/manifest.json").read_text())["step"] == 10


@pytest.mark.parametrize("name", ["manifest.json", "shard_00000-of-00001.safetensors"])
def test_a_pipe_in_place_of_a_file_does_not_stop_the_start(tmp_path, name):
    save(tmp_path, 10)
    save(tmp_path, 20)
    (tmp_path / "step_0000020" / name).unlink()
    os.mkfifo(tmp_path / "step_0000020" / name)
    found, said = newest(tmp_path)
    assert isinstance(found, Checkpoint)
    assert f"{name} cannot be read (it is not a plain file: " in said[0]
