"""A damaged, edited or impossible manifest is passed over; those of earlier versions are read."""

import json

import checkpointed
import pytest
from checkpointed import model, newest, put, record, rewrite, save

from comera_dist.errors import CheckpointError
from comera_dist.formats.dense import DensePlan


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99, "files": {}}'])
def test_a_damaged_manifest_is_passed_over(tmp_path, text):
    save(tmp_path, 10)
    save(tmp_path, 20)
    (tmp_path / "step_0000020/manifest.json").write_text(text)
    found, said = newest(tmp_path)
    assert found.manifest["step"] == 10
    assert "manifest.json is unreadable or of another format" in said[0]


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
        *(put({**UNLOGGED, **one}, "run", "unlogged") for one in ({"flops": "many"}, {"rows": 0}, {"rows": 0.5})),
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


@pytest.mark.parametrize(
    ("state", "found"), [({"kind": {1, 2}}, "set is not JSON"), ({"counts": {"below": 1}}, "counts.below")]
)
def test_a_state_that_no_run_could_resume_from_is_not_saved(tmp_path, monkeypatch, state, found):
    """As that of a rank policy of the user's own."""
    save(tmp_path, 10)
    wrong = record(20)
    wrong["ranks"]["policy"] = state
    monkeypatch.setattr(checkpointed, "record", lambda step: wrong)
    with pytest.raises(CheckpointError, match=f"no run could resume from this checkpoint.*{found}"):
        save(tmp_path, 20)
    assert [folder.name for folder in sorted(tmp_path.glob("*step_*"))] == ["step_0000010"]


def test_a_step_that_was_not_logged_is_kept(tmp_path):
    save(tmp_path, 10)
    rewrite(tmp_path, 10, put(UNLOGGED, "run", "unlogged"))
    found, said = newest(tmp_path)
    assert (found.run["unlogged"], said) == (UNLOGGED, [])
