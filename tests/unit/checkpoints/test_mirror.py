"""A run's checkpoints are copied to remote storage, for which fsspec's file system in memory stands."""

import errno
import itertools
import json
import os
import shutil
import threading
import uuid
from pathlib import Path

import fsspec
import pytest
from checkpointed import newest, save, save_with, shard, steps_in
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from comera_dist.checkpoints.disk import published
from comera_dist.checkpoints.mirror import Mirror
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.write import Saver
from comera_dist.errors import CheckpointError, ConfigError, DiskError

SECONDS = 30.0


@pytest.fixture
def url():
    return f"memory://{uuid.uuid4().hex}/runs"


def run(folder, *steps, **lines):
    """A run's directory with checkpoints."""
    for step in steps:
        save(folder / "checkpoints", step)
    for name, line in ({"run.json": "{}", "metrics.jsonl": "1\n"} | lines).items():
        (folder / name).write_text(line)
    return folder


def send(mirror, folder, step):
    mirror.send(folder / f"checkpoints/step_{step:07d}")
    mirror.close(SECONDS)


def remote(url):
    files, root = fsspec.core.url_to_fs(url)
    return sorted(path[len(root) + 1 :] for path in files.find(root))


def test_a_run_goes_on_elsewhere(tmp_path, url):
    here, there = run(tmp_path / "here/a", 10, 20), tmp_path / "there/a"
    send(Mirror(url, here, Kept(2)), here, 20)
    list(Mirror(url, there, Kept(2)).fetch())
    for name in ("run.json", "metrics.jsonl"):
        assert (there / name).read_text() == (here / name).read_text()
    found, said = newest(there / "checkpoints")
    assert (found.manifest["step"], said) == (20, [])


def test_as_many_stay_as_on_the_disk(tmp_path, url):
    folder = run(tmp_path / "a", 10, 20, 30, 40)
    mirror = Mirror(url, folder, Kept(1, every=20))
    for step in (10, 20, 30, 40):
        send(mirror, folder, step)
    assert {path.split("/")[2] for path in remote(url) if "/step_" in path} == {"step_0000020", "step_0000040"}


def test_the_final_logs_are_copied(tmp_path, url):
    folder = run(tmp_path / "a", 10)
    mirror = Mirror(url, folder, Kept(2))
    send(mirror, folder, 10)
    (folder / "summary.json").write_text("{}")
    mirror.close(SECONDS)
    assert "a/summary.json" in remote(url)


def test_half_a_copy_is_not_a_checkpoint(tmp_path, url, monkeypatch, capsys):
    folder, put = run(tmp_path / "a", 10), MemoryFileSystem.put_file
    mirror = Mirror(url, folder, Kept(2))
    send(mirror, folder, 10)
    run(folder, 20)

    def refuse(files, local, there, **keys):
        if local.endswith("manifest.json"):
            raise OSError("the network is gone")
        put(files, local, there, **keys)

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    send(mirror, folder, 20)
    assert capsys.readouterr().out.count("was not copied to") == 1
    list(Mirror(url, tmp_path / "there/a", Kept(2)).fetch())
    assert os.listdir(tmp_path / "there/a/checkpoints") == ["step_0000010"]
    monkeypatch.undo()
    send(mirror, folder, 20)
    assert "a/checkpoints/step_0000020/manifest.json" in remote(url)


def test_an_empty_copy_is_no_checkpoint(tmp_path, url):
    list(Mirror(url, tmp_path / "a", Kept(2)).fetch())
    assert newest(tmp_path / "a/checkpoints") == (None, [])


def test_storage_that_fails_is_a_sentence(tmp_path, url, monkeypatch):
    folder = run(tmp_path / "a", 10)
    send(Mirror(url, folder, Kept(2)), folder, 10)

    def refuse(*arguments, **keys):
        raise OSError("access denied")

    monkeypatch.setattr(MemoryFileSystem, "get_file", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read \(access denied\); mend that"):
        list(Mirror(url, tmp_path / "there/a", Kept(2)).fetch())


def test_storage_that_is_away_is_not_an_empty_one(tmp_path, monkeypatch):
    """fsspec's `exists` of local folders answers False there, so the run would begin anew."""
    url, folder = f"file://{tmp_path}/mounted/runs", run(tmp_path / "a", 10)
    (tmp_path / "mounted/runs").mkdir(parents=True)
    send(Mirror(url, folder, Kept(2)), folder, 10)

    def refuse(files, path, **keys):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(LocalFileSystem, "info", refuse)
    with pytest.raises(DiskError, match=r"cannot be read \(.*Stale file handle"):
        list(Mirror(url, tmp_path / "there/a", Kept(2)).fetch())


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (RuntimeError("endpoint"), True),
        (PermissionError("denied"), False),
        (OSError(errno.ENOSPC, "full"), False),
    ],
)
def test_storage_that_may_be_back_is_told_from_what_needs_a_person(tmp_path, url, monkeypatch, error, may_pass):
    def refuse(*arguments, **keys):
        raise error

    monkeypatch.setattr(MemoryFileSystem, "info", refuse)
    with pytest.raises(CheckpointError) as caught:
        list(Mirror(url, tmp_path / "a", Kept(2)).fetch())
    assert isinstance(caught.value, DiskError) == may_pass


def begun(hour):
    return json.dumps({"starts": [{"time": f"2026-11-01T{hour:02d}:00:00", "host": "x"}]})


@pytest.mark.parametrize("step", [10, 50], ids=["behind it", "beyond it"])
def test_the_copies_of_another_run_stay(tmp_path, url, capsys, step):
    """Of the same run, too, if a start did not find them because a folder was not mounted."""
    first, second = run(tmp_path / "a", 30, **{"run.json": begun(1)}), tmp_path / "there/a"
    send(Mirror(url, first, Kept(1)), first, 30)
    run(second, step, **{"run.json": begun(2), "metrics.jsonl": "2\n"})
    mirror, before = Mirror(url, second, Kept(1)), remote(url)
    send(mirror, second, step)
    said = capsys.readouterr().out
    assert "another run of this name, begun 2026-11-01T01:00:00 on host x; to go on from them, stop this run" in said
    assert remote(url) == before
    files, root = fsspec.core.url_to_fs(url)
    files.rm(f"{root}/a", recursive=True)  # as the sentence says
    send(mirror, second, step)
    assert f"a/checkpoints/step_{step:07d}/manifest.json" in remote(url)


def test_a_run_whose_directory_was_removed_is_copied_on(tmp_path, url, capsys):
    folder = run(tmp_path / "a", 10, **{"run.json": begun(1)})
    mirror = Mirror(url, folder, Kept(1))
    send(mirror, folder, 10)
    shutil.rmtree(folder)
    run(folder, 20, **{"run.json": begun(2)})
    send(mirror, folder, 20)
    assert "a/checkpoints/step_0000020/manifest.json" in remote(url)
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/a/run.json", b'{"starts": [')  # a kill left half of it
    run(folder, 30, **{"run.json": begun(2)})
    send(Mirror(url, folder, Kept(1)), folder, 30)
    assert "a/checkpoints/step_0000030/manifest.json" in remote(url)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("url", ["nonsense://bucket/runs", "s3a1://x"])
def test_a_url_that_nothing_serves_is_a_sentence(tmp_path, url):
    with pytest.raises(ConfigError, match=f"checkpoint.mirror = {url} cannot be opened"):
        Mirror(url, tmp_path / "a", Kept(2))


def test_logs_that_are_here_are_not_overwritten(tmp_path, url):
    folder = run(tmp_path / "a", 10, **{"run.json": json.dumps({"wandb_id": "x"})})
    send(Mirror(url, folder, Kept(2)), folder, 10)
    there = tmp_path / "there/a"
    there.mkdir(parents=True)
    (there / "run.json").write_text("mine")
    list(Mirror(url, there, Kept(2)).fetch())
    assert (there / "run.json").read_text() == "mine"


def test_a_step_that_was_saved_again_takes_the_place_of_the_first(tmp_path, url):
    folder = run(tmp_path / "a", 10)
    send(Mirror(url, folder, Kept(2)), folder, 10)
    shutil.rmtree(folder / "checkpoints")
    save_with(Saver(folder / "checkpoints", Kept(2)), 10, value=3.0)
    send(Mirror(url, folder, Kept(2)), folder, 10)
    list(Mirror(url, tmp_path / "there/a", Kept(2)).fetch())
    assert newest(tmp_path / "there/a/checkpoints")[1] == []
    assert shard(tmp_path / "there/a/checkpoints", 10).read_bytes() == shard(folder / "checkpoints", 10).read_bytes()


@pytest.mark.parametrize("file", ["metrics.jsonl", "shard_00000-of-00001.safetensors", "manifest.json"])
def test_a_fetch_that_was_cut_short_is_made_anew(tmp_path, url, file):
    """Ended by the network or a kill after half of a file. The logs are never older than the checkpoints."""
    here, there = run(tmp_path / "here/a", 10, 20), tmp_path / "there/a"
    send(Mirror(url, here, Kept(2)), here, 20)
    get = MemoryFileSystem.get_file

    def give_half(files, remote, local, **keys):
        if remote.endswith(file):
            Path(local).write_text("half")
            raise OSError("the network is gone")
        get(files, remote, local, **keys)

    there.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", give_half)
        with pytest.raises(CheckpointError, match="the network is gone"):
            list(Mirror(url, there, Kept(2)).fetch())
    assert published(there / "checkpoints") == []
    list(Mirror(url, there, Kept(2)).fetch())
    assert (there / "metrics.jsonl").read_text() == "1\n"
    assert newest(there / "checkpoints")[0].manifest["step"] == 20
    assert list((there / "checkpoints/step_0000020").glob(".*")) == []


def test_the_best_checkpoint_comes_back_with_the_newest(tmp_path, url):
    kept, folder = Kept(1, best=10), tmp_path / "a"
    saver = Saver(folder / "checkpoints", kept)
    for step in (10, 20, 30):
        save_with(saver, step, stop_early={"best": 1.0, "best_step": 10, "fruitless": 0, "judged_step": step})
        send(Mirror(url, folder, kept), folder, step)
    list(Mirror(url, tmp_path / "there/a", Kept(1)).fetch())
    assert steps_in(tmp_path / "there/a/checkpoints") == ["step_0000010", "step_0000030"]


def test_one_that_stays_is_copied_although_newer_ones_are_waiting(tmp_path, url, monkeypatch):
    folder, put = run(tmp_path / "a", 10, 20, 30), MemoryFileSystem.put_file
    is_sent, may_go_on = threading.Event(), threading.Event()

    def wait_and_put(files, local, there, **keys):
        is_sent.set()
        assert may_go_on.wait(SECONDS)
        put(files, local, there, **keys)

    monkeypatch.setattr(MemoryFileSystem, "put_file", wait_and_put)
    mirror = Mirror(url, folder, Kept(1, every=20))
    for step in (10, 20, 30):
        mirror.send(folder / f"checkpoints/step_{step:07d}")
        assert is_sent.wait(SECONDS)
    may_go_on.set()
    mirror.close(SECONDS)
    assert {path.split("/")[2] for path in remote(url) if "/step_" in path} == {"step_0000020", "step_0000030"}


def test_what_a_killed_copy_has_left_goes(tmp_path, url):
    folder = run(tmp_path / "a", 10, 20)
    files, root = fsspec.core.url_to_fs(url)
    for step in ("step_0000005", "step_0000030"):
        files.pipe_file(f"{root}/a/checkpoints/{step}/shard_00000-of-00001.safetensors", b"half")
    send(Mirror(url, folder, Kept(2)), folder, 20)
    found = {path.split("/")[2] for path in remote(url) if "/step_" in path}
    assert found == {"step_0000020", "step_0000030"}, "a newer one may be on its way"


def test_a_course_that_the_run_has_left_goes(tmp_path, url, capsys):
    folder = run(tmp_path / "a", 10, 20, 30)
    send(Mirror(url, folder, Kept(2)), folder, 20)
    send(Mirror(url, folder, Kept(2)), folder, 30)
    for step in (20, 30):  # by a person, because the run diverged after the first
        shutil.rmtree(folder / f"checkpoints/step_{step:07d}")
    run(folder, 15)
    send(Mirror(url, folder, Kept(2)), folder, 15)
    assert "step_0000030 in memory" in capsys.readouterr().out
    list(Mirror(url, tmp_path / "there/a", Kept(2)).fetch())
    assert steps_in(tmp_path / "there/a/checkpoints") == ["step_0000015"]


def test_copies_that_take_longer_than_saves_are_made_nevertheless(tmp_path, url, monkeypatch):
    kept, folder, put = Kept(1), tmp_path / "a", MemoryFileSystem.put_file
    folder.mkdir()
    saver, may_go_on = Saver(folder / "checkpoints", kept), threading.Event()
    mirror = Mirror(url, folder, kept)

    def wait_and_put(files, local, there, **keys):
        assert may_go_on.wait(SECONDS)
        put(files, local, there, **keys)

    monkeypatch.setattr(MemoryFileSystem, "put_file", wait_and_put)
    for step in (10, 20, 30):
        save_with(saver, step)
        mirror.send(folder / f"checkpoints/step_{step:07d}")
    assert steps_in(folder / "checkpoints") == ["step_0000010", "step_0000020", "step_0000030"]
    may_go_on.set()
    mirror.close(SECONDS)
    assert "a/checkpoints/step_0000030/manifest.json" in remote(url)
    mirror.tick()
    save_with(saver, 40)
    assert steps_in(folder / "checkpoints") == ["step_0000040"]


def test_copies_that_fail_leave_no_parts_and_are_named_anew(tmp_path, url, monkeypatch, capsys):
    folder, put = run(tmp_path / "a", 10), MemoryFileSystem.put_file
    mirror, works = Mirror(url, folder, Kept(3)), [True]

    def put_half(files, local, there, **keys):
        put(files, local, there, **keys)
        if not works[0] and there.endswith("safetensors"):
            raise OSError("no space is left")

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_half)
    for step, works[0] in ((10, True), (20, False), (30, False), (40, True), (50, False)):
        run(folder, step)
        send(mirror, folder, step)
    said = capsys.readouterr().out
    assert said.count("was not copied to") == 2
    assert "step_0000020 was not copied" in said
    assert "step_0000050 was not copied" in said
    assert "is not complete: the last checkpoint was not copied" in said
    assert {path.split("/")[2] for path in remote(url) if "/step_" in path} == {"step_0000010", "step_0000040"}


def test_a_damaged_manifest_is_passed_over(tmp_path, url, capsys):
    folder = run(tmp_path / "a", 10, 20, 30)
    for step in (10, 20, 30):
        send(Mirror(url, folder, Kept(3)), folder, step)
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/a/checkpoints/step_0000030/manifest.json", b'{"format": 2, "st')
    list(Mirror(url, tmp_path / "there/a", Kept(2)).fetch())
    assert "The copy of step_0000030 in memory" in capsys.readouterr().out
    assert steps_in(tmp_path / "there/a/checkpoints") == ["step_0000010", "step_0000020"]


def test_the_summary_of_a_run_that_is_longer_now_goes(tmp_path, url):
    folder = run(tmp_path / "a", 10, **{"summary.json": "{}"})
    send(Mirror(url, folder, Kept(2)), folder, 10)
    (folder / "summary.json").unlink()
    run(folder, 20)
    send(Mirror(url, folder, Kept(2)), folder, 20)
    assert "a/summary.json" not in remote(url)
    assert "a/metrics.jsonl" in remote(url)


def test_a_mirror_that_is_opened_anew_waits_for_the_copy_of_the_one_before_it(tmp_path, url, monkeypatch):
    """As after a rewind: the process is the same, and so is its thread that copies."""
    folder, put = run(tmp_path / "a", 10), MemoryFileSystem.put_file
    is_sent, may_go_on, threads = threading.Event(), threading.Event(), []

    def wait_and_put(files, local, there, **keys):
        threads.append(threading.current_thread())
        is_sent.set()
        assert may_go_on.wait(SECONDS)
        put(files, local, there, **keys)

    monkeypatch.setattr(MemoryFileSystem, "put_file", wait_and_put)
    before, after = Mirror(url, folder, Kept(1)), Mirror(url, folder, Kept(1))
    before.send(folder / "checkpoints/step_0000010")
    assert is_sent.wait(SECONDS)
    run(folder, 20)
    after.send(folder / "checkpoints/step_0000020")
    after.close(0.2)
    assert len(threads) == 1, "the second copy has not begun"
    may_go_on.set()
    after.close(SECONDS)
    copies = [thread for thread, _ in itertools.groupby(threads)]
    assert len(copies) == len(set(copies)), "one copy after the other"
    assert "a/checkpoints/step_0000020/manifest.json" in remote(url)
