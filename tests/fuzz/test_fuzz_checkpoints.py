"""Checkpoints and run files of any content: a sentence, or exactly the model that was saved."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from hypothesis import strategies as st
from inputs import fuzzed, replaced
from mutations import changed_bytes, changed_json, changed_trees, odd_values, places
from support import TINY

from comera_dist.checkpoints.manifest import MANIFEST, read_manifest
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.write import Saver
from comera_dist.config.reader import read_config
from comera_dist.data.batches import Cursor
from comera_dist.data.tasks import open_task
from comera_dist.formats.plan import write_plan
from comera_dist.models.family import build_model, plan_model
from comera_dist.run.compatibility import changes_line
from comera_dist.run.evaluate import evaluate_run
from comera_dist.run.feed import Feed
from comera_dist.run.start import find_start
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import Processes
from comera_dist.storage.run_directory import LOGS, RunDirectory

ALONE = Processes(0, 1, torch.device("cpu"))
STEP = 4


class Silent(Processes):
    """This process, which says nothing."""

    def say(self, text: str) -> None:
        pass


SILENT = Silent(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def run(tiny_corpus, tmp_path_factory):
    """A run with one checkpoint, as a training leaves it. Every input changes one of its files, which is put back."""
    overrides = [*TINY, f"data.corpus={tiny_corpus}", f"run.directory={tmp_path_factory.mktemp('runs')}"]
    config = read_config(None, overrides)
    task = open_task(config)
    plan = plan_model(config, task.facts)
    model = build_model(config.model, plan, torch.Generator().manual_seed(1))
    directory = RunDirectory(config.run_directory)
    directory.open(config, 1, STEP)
    record = {"step": STEP, "tokens": 64, "loss": 3.5, "tokens_per_second": 9.0, "params": 10, "val_loss": 3.0}
    for name in LOGS:
        directory.append(name, record)
    directory.finish({**record, "dense_params": 20, "compression": 2.0, "wall_seconds": 1.0})
    saved = {
        "config": config.model_dump(mode="json"),
        "plan": write_plan(plan),
        "planned": write_plan(plan),
        "vocabulary": task.vocabulary,
        "cursor": {"seed": 1, "epoch": 0, "tokens": STEP * config.step_tokens, "fingerprint": task.fingerprint},
        "wall_seconds": 1.0,
        "ranks": None,
        "unlogged": {"loss": 3.5, "grad_norm": 1.0, "lr": 0.1, "seconds": [[0.1, 0.2]]},
        "watch": {"losses": [3.5], "bad_in_a_row": 0},
    }
    saver = Saver(directory.checkpoints, Kept(2))
    saver.begin(STEP, engine_of(model), saved)
    assert saver.wait() == STEP
    return config


def engine_of(model: torch.nn.Module) -> SimpleNamespace:
    """Stands for an engine with AdamW's moments."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    state = {n: {"weight": p, "exp_avg": p / 2, "exp_avg_sq": p * p} for n, p in parameters.items()}
    return SimpleNamespace(
        processes=ALONE,
        shapes={name: p.shape for name, p in parameters.items()},
        state=lambda owners, device: state,
        optimizer_step=STEP,
        gate_step=STEP,
        check_weights=lambda: None,
    )


def folder_of(config) -> Path:
    return config.run_directory / "checkpoints" / f"step_{STEP:07d}"


def shard_of(config) -> Path:
    return next(folder_of(config).glob("*.safetensors"))


def use(config) -> list[torch.Tensor]:
    """Resumes, evaluates and reads the moments; the weights."""
    task = open_task(config)
    start = find_start(config, task, plan_model(config, task.facts), config.run_directory / "checkpoints", SILENT)
    changes_line(config, start.own)
    Feed(config, task, SILENT).batches.resume(Cursor.of_record(start.own.run["cursor"]))
    assert dict(start.own.moments()).keys() == start.own.manifest["tensors"].keys()
    figures = evaluate_run(config.run_directory, SILENT, None, None, "valid", 64)
    assert figures["loss"] > 0
    return list(load_trained(config.run_directory, SILENT).model.parameters())


def hashed(tree: dict) -> bytes:
    """The manifest with the sha256 that its content has."""
    content = {key: value for key, value in tree.items() if key != "sha256"}
    sha256 = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({"sha256": sha256, **content}).encode()


def test_what_was_not_changed_is_used(run):
    assert len(use(run)) > 10


@fuzzed("checkpoint: bytes of the manifest", 240, data=st.data())
def test_any_bytes_of_a_manifest(run, data):
    manifest = folder_of(run) / MANIFEST
    content = data.draw(changed_bytes(manifest.read_bytes()))
    meant = json.loads(manifest.read_bytes())
    with replaced({manifest: content}):
        use(run)
    assert read_manifest(content) == meant, "another content was accepted"


@fuzzed("checkpoint: tree of the manifest, hashed anew", 540, data=st.data())
def test_any_tree_of_a_manifest_with_the_right_hash(run, data):
    manifest = folder_of(run) / MANIFEST
    with replaced({manifest: hashed(data.draw(changed_trees(json.loads(manifest.read_bytes()))))}):
        use(run)


@fuzzed("checkpoint: value in the manifest, hashed anew", 260, value=odd_values, data=st.data())
def test_any_value_in_a_manifest_with_the_right_hash(run, value, data):
    manifest = folder_of(run) / MANIFEST
    tree = json.loads(manifest.read_bytes())
    *above, last = data.draw(st.sampled_from([path for path in places(tree) if path and path[0] != "tensors"]))
    parent = tree
    for key in above:
        parent = parent[key]
    parent[last] = value
    with replaced({manifest: hashed(tree)}):
        use(run)


def with_shard(config, content: bytes) -> dict[Path, bytes]:
    """The shard and a manifest that names its size and sha256."""
    manifest, shard = folder_of(config) / MANIFEST, shard_of(config)
    tree = json.loads(manifest.read_bytes())
    tree["files"][shard.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {shard: content, manifest: hashed(tree)}


@fuzzed("checkpoint: bytes of a shard", 180, data=st.data())
def test_only_the_bytes_that_the_manifest_names_are_accepted(run, data):
    whole = shard_of(run).read_bytes()
    content = data.draw(changed_bytes(whole))
    with replaced({shard_of(run): content}):
        use(run)
    assert content == whole, "damage was not noticed"


@fuzzed("checkpoint: bytes of a shard, hashed anew", 180, data=st.data())
def test_any_bytes_of_a_shard_with_the_right_hash(run, data):
    whole = shard_of(run).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    content = data.draw(changed_bytes(whole[:header])) + whole[header:]
    with replaced(with_shard(run, content)):
        use(run)


SIZES = st.sampled_from([0, 1, 8, 2**31, 2**32, 2**62, 2**63, 2**64 - 1, 100_000_001]) | st.integers(0, 2**64 - 1)


@fuzzed("checkpoint: header of a shard, hashed anew", 420, data=st.data(), size=st.none() | SIZES)
def test_any_header_of_a_shard_with_the_right_hash(run, data, size):
    whole = shard_of(run).read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = data.draw(changed_json(json.loads(whole[8:end])))
    stated = len(header) if size is None else size
    with replaced(with_shard(run, stated.to_bytes(8, "little") + header + whole[end:])):
        use(run)


@fuzzed("run files: bytes", 180, name=st.sampled_from([*LOGS, "run.json", "summary.json"]), data=st.data())
def test_any_bytes_of_the_files_of_a_run(run, name, data):
    """They are records for people: what is damaged in them never stops a run."""
    path = run.run_directory / name
    with replaced({**files_of(run), path: data.draw(changed_bytes(path.read_bytes()))}):
        read_files(run)


@fuzzed("run files: tree", 180, name=st.sampled_from([*LOGS, "run.json", "summary.json"]), data=st.data())
def test_any_tree_in_the_files_of_a_run(run, name, data):
    path = run.run_directory / name
    with replaced({**files_of(run), path: data.draw(changed_json(json.loads(path.read_bytes()))) + b"\n"}):
        read_files(run)


def files_of(config) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in config.run_directory.iterdir() if path.is_file()}


def read_files(config) -> None:
    """Everything that a start does with them."""
    directory = RunDirectory(config.run_directory)
    directory.read_summary()
    directory.forget_after(STEP - 1)
    assert all(record["step"] < STEP for name in LOGS for record in directory.read(name))
    directory.open(config, 1, STEP)
    assert directory.facts()["starts"][-1]["step"] == STEP


@fuzzed("run files: tree of config.yaml", 180, data=st.data())
def test_any_tree_of_the_configuration_of_a_run(run, data):
    path = run.run_directory / "config.yaml"
    content = yaml.safe_dump(data.draw(changed_trees(yaml.safe_load(path.read_text()))), allow_unicode=True)
    with replaced({path: content.encode(errors="surrogatepass")}):
        load_trained(run.run_directory, SILENT)


def test_a_copy_of_a_run_is_used(run, tmp_path):
    shutil.copytree(run.run_directory, tmp_path / "copy")
    assert len(list(load_trained(tmp_path / "copy", SILENT).model.parameters())) == len(use(run))
