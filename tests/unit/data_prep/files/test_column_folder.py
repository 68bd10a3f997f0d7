"""Columns are published whole or not at all, and an older data set stays until then."""

import fcntl
import hashlib
import os

import numpy as np
import pytest

from comera_dist.data.columns import Column, ColumnSet
from comera_dist.errors import DataError
from data_prep.files import output_folder
from data_prep.files.column_folder import ColumnFolder


def folder_of(path, **parameters):
    return ColumnFolder(
        path, "clicks", {"labels": Column("|i1"), "categories": Column("<i4", 2)}, ["train"], parameters
    )


def write(path, parts=(3,), files=None, **parameters):
    folder, pairs = folder_of(path, **parameters), np.arange(6).reshape(3, 2)
    with folder.writing():
        for part in np.split(np.arange(3), np.cumsum(parts)[:-1]):
            folder.append("train", {"labels": part, "categories": pairs[part]})
        return folder.publish({"facts": "x"}, files)


def test_nothing_but_the_data_set_is_left(tmp_path):
    write(tmp_path / "set", files={"words.json": b"{}"})
    found = {str(path.relative_to(tmp_path / "set")) for path in (tmp_path / "set").rglob("*")}
    assert found == {"manifest.json", "words.json", "train", "train/labels.bin", "train/categories.bin"}


def test_parts_make_the_same_data_set_as_the_whole(tmp_path):
    assert write(tmp_path / "a", parts=(1, 0, 2)) == write(tmp_path / "b")


def test_the_manifest_names_what_is_on_the_disk(tmp_path):
    entry = write(tmp_path / "set")["splits"]["train"]["categories"]
    content = (tmp_path / "set" / "train" / "categories.bin").read_bytes()
    assert content == np.arange(6, dtype="<i4").tobytes()
    assert entry == {"dtype": "<i4", "width": 2, "entries": 3, "sha256": hashlib.sha256(content).hexdigest()}


def test_only_the_same_parameters_count_as_finished(tmp_path):
    assert not folder_of(tmp_path / "set", seed=1).is_finished()
    write(tmp_path / "set", seed=1)
    assert folder_of(tmp_path / "set", seed=1).is_finished()
    with pytest.raises(DataError, match=r"--overwrite .* another --output"):
        folder_of(tmp_path / "set", seed=2).is_finished()


def test_damaged_data_do_not_count_as_finished(tmp_path):
    write(tmp_path / "set")
    os.truncate(tmp_path / "set/train/labels.bin", 1)
    with pytest.raises(DataError, match=r"labels\.bin has 1 bytes, the manifest says 3; .*--overwrite"):
        folder_of(tmp_path / "set").is_finished()


def test_a_failure_leaves_the_older_data_set(tmp_path):
    before, folder = write(tmp_path / "set"), folder_of(tmp_path / "set", seed=2)
    with pytest.raises(ValueError, match="invalid literal"), folder.writing():
        folder.append("train", {"labels": ["no number"]})
    assert ColumnSet(tmp_path / "set", "clicks").manifest == before
    assert not (tmp_path / "set" / ".partial").exists()


def test_what_a_killed_run_left_is_written_anew(tmp_path):
    leftover = tmp_path / "set" / ".partial" / "train"
    leftover.mkdir(parents=True)
    (leftover / "labels.bin").write_bytes(b"old")
    (leftover / "older.bin").write_bytes(b"old")
    assert write(tmp_path / "set") == write(tmp_path / "other")
    assert not (tmp_path / "set" / "train" / "older.bin").exists()


def test_two_runs_on_one_folder_are_refused(tmp_path):
    (tmp_path / "set" / ".partial").mkdir(parents=True)
    lock = os.open(tmp_path / "set", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another process"):
        write(tmp_path / "set")
    assert (tmp_path / "set" / ".partial").exists()  # it is the other one's
    os.close(lock)
    write(tmp_path / "set")


@pytest.mark.parametrize("name", ["train/1.txt", "test/numbers.bin"])
@pytest.mark.parametrize("is_published", [False, True])
def test_files_of_others_are_not_replaced(tmp_path, name, is_published):
    """Raw data often lie in folders named `train`, `valid` and `test`, too."""
    if is_published:
        write(tmp_path / "set")
        name = name.replace(".bin", ".npz")
    (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "set" / name).write_text("mine")
    with pytest.raises(DataError, match=f"{name} belongs to no prepared data.* another --output"):
        write(tmp_path / "set")
    assert (tmp_path / "set" / name).read_text() == "mine"


def test_publishing_that_was_killed_can_be_repeated(tmp_path, monkeypatch):
    """Split by split is moved to its place before there is a manifest."""
    with monkeypatch.context() as patched:
        patched.setattr(output_folder, "write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "set")
    assert (tmp_path / "set/train/labels.bin").exists()
    assert write(tmp_path / "set") == write(tmp_path / "other")


def interrupt(*_):
    raise KeyboardInterrupt
