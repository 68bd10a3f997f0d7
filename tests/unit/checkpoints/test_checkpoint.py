"""Publishing survives a kill at every moment; damage is found, named and passed over."""

import errno
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from listening import Listening
from safetensors.torch import load_file, save_file
from torch import nn

from comera_dist.checkpoints.disk import published
from comera_dist.checkpoints.read import Checkpoint, find_checkpoint
from comera_dist.checkpoints.verify import newest_step
from comera_dist.checkpoints.write import Saver
from comera_dist.data.contents import file_sha256
from comera_dist.errors import CheckpointError, TrainingError
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.tensor_train.shapes import plan_tt
from comera_dist.runtime.processes import alone

# A dense layer 4 → 3, and a layer 2 → 5 as a train of two cores.
SHAPES = {"a.weight": (3, 4), "b.core_1": (1, 2, 1), "b.core_2": (1, 5, 1), "b.gate_1": (1,)}


def engine(value: float):
    """Stands for an engine: parameters and their moments, all numbers near `value`."""
    state = {
        name: {kind: torch.full(shape, value + i) for i, kind in enumerate(("weight", "exp_avg", "exp_avg_sq"))}
        for name, shape in SHAPES.items()
    }
    shapes = {name: tensors["weight"].shape for name, tensors in state.items()}
    return SimpleNamespace(
        processes=alone(),
        shapes=shapes,
        state=lambda owners: (
            {name: {kind: tensor.clone() for kind, tensor in tensors.items()} for name, tensors in state.items()}
            if owners
            else state
        ),
        optimizer_step=7,
        gate_step=3,
        check_weights=lambda: None,
    )


def record(step):
    """The record that a session saves with the tensors, for the layers of SHAPES."""
    return {
        "config": {"model": {"kind": "decoder"}, "optim": {"lr": 1e-05}},
        "plan": {
            "a": DensePlan(4, 3).to_json(),
            "b": plan_tt(2, 5, order=1, rank=1, outer_rank=1).to_json(),
        },
        "cursor": {"seed": 1, "epoch": 0, "tokens": step, "fingerprint": "é"},
        "wall_seconds": 0.1,
        "wandb_id": None,
        "ranks": {
            "late_size": None,
            "goal": 1.5,
            "policy": {"counts": {"below": {"b": [[0]]}}},
            "soft_ranks": [1.0],
            "objective": {"target_size": None, "mean_loss": 4.0, "applied": 0.5},
        },
    }


def save(root, step, keep=9, resumed=None, keep_every=0):
    save_with(Saver(root, keep, resumed, keep_every), step)


def save_with(saver, step):
    saver.begin(step, engine(float(step)), record(step))
    assert saver.wait() == step


def model():
    module = nn.Module()
    module.a, module.b = nn.Linear(4, 3, bias=False), nn.Module()
    for name in ("core_1", "core_2", "gate_1"):
        module.b.register_parameter(name, nn.Parameter(torch.zeros(SHAPES[f"b.{name}"])))
    return module


def newest(root):
    processes = Listening()
    return find_checkpoint(root, processes), processes.said


def shard(root, step):
    return next((root / f"step_{step:07d}").glob("*.safetensors"))


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


def test_only_the_newest_are_kept(tmp_path):
    for step in (30, 9_999_999, 10_000_000, 10_000_001):
        save(tmp_path, step, keep=2)
    assert [p.name for p in published(tmp_path)] == ["step_10000001", "step_10000000"]


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


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99, "files": {}}'])
def test_a_damaged_manifest_is_passed_over(tmp_path, text):
    save(tmp_path, 10)
    save(tmp_path, 20)
    (tmp_path / "step_0000020/manifest.json").write_text(text)
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "manifest.json is unreadable or of another format" in said[0]


def rewrite(root, step, change):
    """Makes a manifest one of format 1, which has no hash of its own, and applies `change` to it."""
    path = root / f"step_{step:07d}/manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256", None)
    manifest["format"] = 1
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_checkpoint_of_format_1_is_read(tmp_path):
    save(tmp_path, 10)
    rewrite(tmp_path, 10, without_tags)
    found, said = newest(tmp_path)
    found.load_weights(model())
    assert (found.manifest["format"], found.run["cursor"], said) == (1, record(10)["cursor"], [])


def without_tags(manifest):
    """A manifest as it was before plans had tags."""
    manifest["run"].pop("ranks")
    for plan in (manifest["run"]["plan"], manifest["run"].get("planned", {})):
        for name, layer in plan.items():
            is_train = layer.pop("format") == "tensor_train"
            sizes = dict(layer) if not is_train else {key: layer[key] for key in ("inputs", "outputs")}
            if is_train:
                layer["in_features"], layer["out_features"] = layer.pop("inputs"), layer.pop("outputs")
            plan[name] = {"is_embedding": False, "is_removed": False, "shape": layer if is_train else None, **sizes}


@pytest.mark.parametrize("change", ["optimizer_step", "tokens", "format"])
def test_a_manifest_that_was_edited_is_passed_over(tmp_path, change):
    save(tmp_path, 10)
    save(tmp_path, 20)
    path = tmp_path / "step_0000020/manifest.json"
    manifest = json.loads(path.read_text())
    (manifest["run"]["cursor"] if change == "tokens" else manifest)[change] = 1
    path.write_text(json.dumps(manifest))
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "its manifest.json does not have the sha256 that it names" in said[0]


def test_an_earlier_version_kept_counts_and_keys_of_the_rank_policy_elsewhere(tmp_path):
    save(tmp_path, 10)
    rewrite(tmp_path, 10, counted_as_before({"b": [[0]]}))
    rewrite(tmp_path, 10, put({"adapt": True, "patience": 3, "grow": 0}, "run", "config", "ranks"))
    found, said = newest(tmp_path)
    assert (found.run["ranks"], said) == (record(10)["ranks"], [])
    assert found.run["config"]["ranks"] == {"adapt": True, "policy": {"patience": 3, "grow": 0}}


def lose(*path):
    def change(manifest):
        for key in path[:-1]:
            manifest = manifest[key]
        del manifest[path[-1]]

    return change


def put(value, *path):
    def change(manifest):
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


def counted_as_before(below):
    def change(manifest):
        ranks = manifest["run"]["ranks"]
        del ranks["policy"]
        ranks["below"] = below

    return change


UNLOGGED = {"loss": 1.0, "grad_norm": 1.0, "lr": 0.1, "seconds": [[0.1, 0.2]]}
BAD_COUNTS = ([["x"]], [[0, 0]], [[10**30]], [[0.5]], [])


@pytest.mark.parametrize(
    "change",
    [
        *(lose(*path) for path in (["step"], ["optimizer_step"], ["tensors"], ["run"], ["run", "config"])),
        *(lose("run", *path) for path in (["plan"], ["cursor"], ["cursor", "tokens"], ["plan", "a", "inputs"])),
        *(put(value, "step") for value in (21, "20", 20.0, None, True)),
        *(put(value, "optimizer_step") for value in (-1, 21, "7")),
        *(put(value, "files") for value in ({}, [], None, {"../x": {"bytes": 1, "sha256": "0" * 64}})),
        *(put(value, "run") for value in (None, [], {})),
        *(put(value, "tensors", "a.weight") for value in (None, {}, {"file": "shard", "shape": [3, 4]})),
        *(put(value, "tensors", "a.weight", "shape") for value in ([4, 3], [12], ["3", 4], [])),
        put("shard_00001-of-00001.safetensors", "tensors", "a.weight", "file"),
        put({"file": "shard_00000-of-00001.safetensors", "shape": [1]}, "tensors", "c.weight"),
        *(put(value, "run", "cursor", "tokens") for value in ("20", -20, 2.5)),
        put("soon", "run", "wall_seconds"),
        *(put(value, "run", "unlogged") for value in ([], {"loss": 1.0}, {**UNLOGGED, "seconds": [[0.1]]})),
        put({**UNLOGGED, "flops": "many"}, "run", "unlogged"),
        *(put(value, "run", "watch") for value in ([], {"losses": [1.0]}, {"losses": ["a"], "bad_in_a_row": 0})),
        put({"losses": [], "bad_in_a_row": -1}, "run", "watch"),
        *(put(value, "run", "vocabulary") for value in ([], {"tokenizer": 7})),
        *(put(value, "run", "plan") for value in ([], {"a": 1}, {"c": DensePlan(4, 3).to_json()})),
        put([0, 0], "run", "plan", "b", "ranks"),
        put(1, "run", "plan", "b", "cores"),
        put(10**30, "run", "plan", "b", "ranks", 1),
        put([1, 2, 1], "run", "plan", "b", "ranks"),
        put({}, "run", "planned"),
        *(put(value, "run", "ranks", "policy", "counts", "below", "b") for value in BAD_COUNTS),
        *(put({"b": value}, "run", "ranks", "policy", "counts", "another") for value in BAD_COUNTS),
        *(counted_as_before({"b": value}) for value in BAD_COUNTS),
        *(counted_as_before(value) for value in ({"c": [[0]]}, {}, [], None)),
        *(put(value, "run", "ranks", "policy") for value in (None, [], {"counts": []}, {"counts": {"below": 1}})),
        lose("run", "ranks", "policy"),
        put([], "run", "ranks", "soft_ranks"),
    ],
)
def test_a_missing_or_mistyped_key_is_damage(tmp_path, change):
    save(tmp_path, 10)
    save(tmp_path, 20)
    rewrite(tmp_path, 20, change)
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "step_0000020 is passed over: " in said[0]


def test_a_step_that_was_not_logged_is_kept(tmp_path):
    save(tmp_path, 10)
    rewrite(tmp_path, 10, put(UNLOGGED, "run", "unlogged"))
    found, said = newest(tmp_path)
    assert (found.run["unlogged"], said) == (UNLOGGED, [])


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


def test_the_damaged_checkpoint_of_a_named_step_is_not_replaced_by_another(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    truncate(shard(tmp_path, 20))
    assert find_checkpoint(tmp_path, alone(), step=10).manifest["step"] == 10
    with pytest.raises(CheckpointError, match=r"step_0000020 is damaged \(.* bytes instead of .*\); .* another step"):
        find_checkpoint(tmp_path, alone(), step=20)


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


def steps_in(root):
    return sorted(path.name for path in root.iterdir() if "step" in path.name)


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


def test_what_was_resumed_from_stays_until_as_many_new_ones_are_whole(tmp_path):
    for step in (12, 14, 16, 20):
        save(tmp_path, step)
    truncate(shard(tmp_path, 16))
    saver, left = Saver(tmp_path, 3, newest(tmp_path)[0]), []
    for step in (30, 40, 50):
        save_with(saver, step)
        left.append([int(path.name[5:]) for path in published(tmp_path)])
    assert left == [[30, 20, 16, 14], [40, 30, 20], [50, 40, 30]]


def test_a_newer_folder_of_unknown_origin_is_left_and_does_not_count(tmp_path):
    save(tmp_path, 10)
    saver = Saver(tmp_path, 1, newest(tmp_path)[0])
    save(tmp_path, 90)
    for step in (20, 30):
        save_with(saver, step)
    assert steps_in(tmp_path) == ["step_0000030", "step_0000090"]


def test_permanent_ones_are_never_deleted(tmp_path):
    saver = Saver(tmp_path, 1, keep_every=20)
    for step in range(10, 65, 5):
        save_with(saver, step)
    assert steps_in(tmp_path) == ["step_0000020", "step_0000040", "step_0000060"]
    save_with(saver, 65)
    assert steps_in(tmp_path) == ["step_0000020", "step_0000040", "step_0000060", "step_0000065"]


def test_the_run_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The state of the moment is saved, however long the disk takes, and a second save waits for the first."""
    slow, fsync, saver, mine = threading.Event(), os.fsync, Saver(tmp_path, 9), engine(10.0)
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


def poll_until_it_ends(saver):
    while saver.poll() is None:
        time.sleep(0.01)


def test_a_save_that_fails_in_the_background_is_told_at_the_next_step(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    saver = Saver(tmp_path, 9)
    monkeypatch.setattr(os, "fsync", refuse)
    saver.begin(10, engine(10.0), record(10))
    with pytest.raises(CheckpointError, match="No space left on device"):
        poll_until_it_ends(saver)
    assert steps_in(tmp_path) == []


def test_a_namesake_is_never_deleted(tmp_path):
    for _ in range(3):
        save(tmp_path, 10)
    assert steps_in(tmp_path) == ["damaged_step_0000010", "damaged_step_0000010_2", "step_0000010"]
    saver = Saver(tmp_path, 1, newest(tmp_path)[0])
    saver.begin(10, None, {})  # the run resumed from it: there is nothing new to save
    assert len(steps_in(tmp_path)) == 3


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


@pytest.mark.parametrize("name", ["mkdir", "rename", "replace", "fsync"])
def test_every_refusal_of_the_disk_is_a_sentence(tmp_path, monkeypatch, name):
    save(tmp_path, 10)

    def refuse(*arguments, **keys):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(CheckpointError, match=r"Read-only file system: .*; checkpoints of earlier steps are as they"):
        save(tmp_path, 20, keep=1)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".tmp-step*"))
    assert (tmp_path / "step_0000010").exists()
    assert newest(tmp_path)[1] == []


def test_a_root_that_cannot_be_listed_is_not_an_empty_one(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="checkpoints cannot be read"):
        newest(tmp_path / "checkpoints")


def test_nothing_is_saved_where_weights_differ(tmp_path):
    def differ():
        raise TrainingError("they differ")

    parted = engine(20.0)
    parted.check_weights = differ
    save(tmp_path, 10)
    with pytest.raises(TrainingError):
        Saver(tmp_path, 9).begin(20, parted, record(20))
    assert steps_in(tmp_path) == ["step_0000010"]


def test_a_run_never_starts_afresh_over_damaged_checkpoints(tmp_path):
    save(tmp_path, 10)
    truncate(shard(tmp_path, 10))
    with pytest.raises(CheckpointError, match=r"all 1 checkpoints .* are damaged; restore one"):
        newest(tmp_path)


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path):
    save(tmp_path, 10)
    other = model()
    other.b.core_1 = nn.Parameter(torch.zeros(1, 2, 4))
    with pytest.raises(CheckpointError, match=r"holds b.core_1 as \(1, 2, 1\) and the model has \(1, 2, 4\)"):
        newest(tmp_path)[0].load_weights(other)


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
