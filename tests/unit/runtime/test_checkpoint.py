"""Publishing survives a kill at every moment; damage is found, named and passed over."""

import json
import os
import pickle
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from comera_dist.data.shards import file_sha256
from comera_dist.errors import CheckpointError
from comera_dist.runtime import checkpoint
from comera_dist.runtime.checkpoint import find_checkpoint, published, save_checkpoint


class OneProcess:
    """Processes of a single process, without a process group."""

    index, count, is_first = 0, 1, True

    def __init__(self):
        self.said = []

    def barrier(self):
        pass

    def gather(self, thing):
        return [thing]

    def from_first(self, thing):
        return thing

    def say(self, text):
        self.said.append(text)


def engine(value: float):
    """What save_checkpoint needs of an engine: two parameters and their moments."""
    state = {
        name: {kind: torch.full(shape, value + i) for i, kind in enumerate(("weight", "exp_avg", "exp_avg_sq"))}
        for name, shape in (("a.weight", (3, 4)), ("b.core_1", (1, 2, 5)))
    }
    shapes = {name: tensors["weight"].shape for name, tensors in state.items()}
    steps = {"optimizer_step": 7, "gate_step": 3}
    return SimpleNamespace(processes=OneProcess(), shapes=shapes, state=lambda owners: state, **steps)


def save(root, step, keep=9):
    save_checkpoint(root, step, engine(float(step)), {"cursor": {"tokens": step}}, keep)


def model():
    module = nn.Module()
    module.a, module.b = nn.Linear(4, 3, bias=False), nn.Module()
    module.b.core_1 = nn.Parameter(torch.zeros(1, 2, 5))
    return module


def newest(root):
    processes = OneProcess()
    return find_checkpoint(root, processes), processes.said


def shard(root, step):
    return next((root / f"step_{step:07d}").glob("*.safetensors"))


def test_what_is_saved_is_what_is_loaded(tmp_path):
    save(tmp_path, 10)
    found, said = newest(tmp_path)
    assert (found.manifest["step"], found.run, said) == (10, {"cursor": {"tokens": 10}}, [])
    assert (found.optimizer_step, found.gate_step) == (7, 3)
    module = model()
    found.load_weights(module)
    assert torch.equal(module.a.weight, torch.full((3, 4), 10.0))
    moments = dict(found.moments())
    assert torch.equal(moments["b.core_1"]["exp_avg_sq"], torch.full((1, 2, 5), 12.0))


def test_a_checkpoint_from_before_gates_had_a_step_count_has_that_of_the_optimizer():
    assert checkpoint.Checkpoint(None, {"optimizer_step": 7}).gate_step == 7


def test_only_the_newest_are_kept(tmp_path):
    for step in (5, 9_999_999, 10_000_000, 30):
        save(tmp_path, step, keep=2)
    assert [p.name for p in published(tmp_path)] == ["step_10000000", "step_9999999"]


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
    assert "manifest.json is missing, unreadable or of another format" in said[0]


def test_a_run_never_starts_afresh_over_damaged_checkpoints(tmp_path):
    save(tmp_path, 10)
    truncate(shard(tmp_path, 10))
    with pytest.raises(CheckpointError, match=r"all 1 checkpoints .* are damaged; restore one"):
        newest(tmp_path)


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path):
    save(tmp_path, 10)
    other = model()
    other.b.core_1 = nn.Parameter(torch.zeros(1, 2, 4))
    with pytest.raises(CheckpointError, match=r"holds b.core_1 as \(1, 2, 5\) and the model has \(1, 2, 4\)"):
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
    manifest_path = tmp_path / "step_0000020/manifest.json"
    manifest = json.loads(manifest_path.read_text())
    manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    manifest_path.write_text(json.dumps(manifest))
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "is not a safetensors file" in said[0]
    assert not (tmp_path / "exploded").exists()


def killed_at(call: int, root) -> bool:
    """Saves step 20 in a child that is killed before its `call`-th change of the disk; False where it got through."""
    child = os.fork()
    if child == 0:
        made = 0

        def counted(function):
            def wrapper(*arguments, **keys):
                nonlocal made
                made += 1
                if made == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **keys)

            return wrapper

        for owner, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (checkpoint.shutil, "rmtree")):
            setattr(owner, name, counted(getattr(owner, name)))
        checkpoint.save_file = counted(checkpoint.save_file)
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
