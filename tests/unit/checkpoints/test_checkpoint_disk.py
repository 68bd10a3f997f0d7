"""A disk that refuses, and a kill at every moment of a save, leave whole checkpoints."""

import errno
import os
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
from checkpointed import newest, save
from safetensors.torch import save_file

from comera_dist.checkpoints import verify
from comera_dist.data import contents
from comera_dist.errors import CheckpointError, DiskError


def limited(function, bytes):
    """`function` on a disk where no file can exceed `bytes`."""

    def call(*arguments):
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))
        try:
            return function(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return call


@pytest.mark.parametrize("bytes", [100, 1000])  # a shard has some 700, the manifest more than 1,000
def test_a_full_disk_is_a_sentence_and_leaves_what_there_was(tmp_path, bytes):
    save(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"saving .*step_0000020 failed \(.*(large|27)\S*\); .* free space"):
        limited(save, bytes)(tmp_path, 20, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "step_0000010"]


# Path.mkdir, because pathlib of Python 3.10 keeps the function of os that it found when it was imported.
@pytest.mark.parametrize(("owner", "name"), [(Path, "mkdir"), (os, "rename"), (os, "replace"), (os, "fsync")])
def test_every_refusal_of_the_disk_is_a_sentence(tmp_path, monkeypatch, owner, name):
    save(tmp_path, 10)

    def refuse(*arguments, **keys):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(CheckpointError, match=r"Read-only file system: .*; checkpoints of earlier steps are as they"):
        save(tmp_path, 20, keep=1)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".tmp-step*"))
    assert (tmp_path / "step_0000010").exists()
    assert newest(tmp_path)[1] == []


@pytest.mark.parametrize(
    ("number", "is_away"), [(errno.ESTALE, True), (errno.EIO, True), (errno.ENOSPC, False), (errno.EACCES, False)]
)
def test_a_disk_that_is_often_back_is_told_from_one_that_needs_a_person(tmp_path, monkeypatch, number, is_away):
    def refuse(*arguments, **keys):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, 20)
    assert isinstance(caught.value, DiskError) == is_away


@pytest.mark.parametrize("name", ["check_plain", "file_sha256"])
def test_a_checkpoint_is_not_passed_over_because_its_file_system_is_away(tmp_path, monkeypatch, name):
    for step in (10, 20):
        save(tmp_path, step)

    def refuse(path, *_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(verify, name, refuse)
    with pytest.raises(DiskError, match=r"step_0000020.* cannot be read now \(Stale file handle"):
        newest(tmp_path)
    monkeypatch.undo()
    found, said = newest(tmp_path)
    assert (found.manifest["step"], said) == (20, [])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_checkpoint_is_not_passed_over_for_want_of_permissions(tmp_path, monkeypatch, number):
    """As one that somebody has saved as root: the next save would call it damaged, and its steps were lost."""
    for step in (10, 20):
        save(tmp_path, step)

    def refuse(path):
        if "step_0000020" in str(path):
            raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(verify, "check_plain", refuse)
    with pytest.raises(
        CheckpointError, match=r"step_0000020/manifest.json cannot be read \(.*\), though it may be whole"
    ):
        newest(tmp_path)
    assert verify.newest_step(tmp_path) == 10
    save(tmp_path, 30, keep=1)  # which looks at older ones, and is not disturbed


def test_reading_a_large_checkpoint_is_progress(tmp_path, monkeypatch):
    save(tmp_path, 10)
    blocks = []
    monkeypatch.setattr(contents, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(verify, "alive", lambda: blocks.append(1))
    assert newest(tmp_path)[1] == []
    assert len(blocks) == -(-next(tmp_path.glob("step_*/*.safetensors")).stat().st_size // 100)


def test_a_root_that_cannot_be_listed_is_not_an_empty_one(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="checkpoints cannot be read"):
        newest(tmp_path / "checkpoints")


# A child is killed before one of these calls: of C functions, and of functions in Python.
CHANGES = {os.rename, os.replace, os.fsync}
WRITERS = {shutil.rmtree.__code__, save_file.__code__}


def killed_at(call: int, root) -> bool:
    """Saves step 20 in a child that is killed before its `call`-th change of the disk; False if it made fewer."""
    child = os.fork()
    if child == 0:
        made = 0

        def watch(frame, event, function) -> None:
            nonlocal made
            made += (event == "c_call" and function in CHANGES) or (event == "call" and frame.f_code in WRITERS)
            if made == call:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(watch)
        threading.setprofile(watch)  # of the threads that a save starts
        try:
            save(root, 20, keep=1)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_kill_at_every_moment_leaves_a_whole_checkpoint(tmp_path):
    steps = []
    for call in range(1, 50):
        root = tmp_path / str(call)
        save(root, 10)
        survived = not killed_at(call, root)
        found, said = newest(root)
        assert said == []  # what is published is whole: nothing had to be passed over
        steps.append(found.manifest["step"])
        save(root, 30)  # what the kill left behind does not disturb the next save
        assert newest(root)[0].manifest["step"] == 30
        if survived:
            break
    assert survived
    assert steps == sorted(steps)
    assert {10, 20} == set(steps)
    assert len(steps) > 10
