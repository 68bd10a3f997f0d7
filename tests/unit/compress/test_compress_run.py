"""A trained dense model becomes a smaller run from which another run starts."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from forked import run_processes
from support import WORKLOADS, losses, make_clicks, make_pairs, tiny_run
from torch import nn

from comera_dist.commands.compress import main
from comera_dist.compress.compress_run import compress_run
from comera_dist.errors import CheckpointError, ComeraError, ConfigError, RunDirectoryError
from comera_dist.run.trained import load_trained

DENSE = ("model.format=dense", "optim.lr=0.01", "train.steps=60")


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """A folder with a dense decoder, a tensorized one, a dense encoder and a dense DLRM."""
    folder = tmp_path_factory.mktemp("runs")
    pairs = make_pairs(folder / "pairs")
    encoder = [*WORKLOADS["masked_lm"], f"data.corpus={pairs}", f"run.directory={folder}", "run.name=encoder", *DENSE]
    clicks = make_clicks(folder / "clicks", rows=50)
    dlrm = [*WORKLOADS["dlrm"], f"data.corpus={clicks}", f"run.directory={folder}", "run.name=dlrm", *DENSE]
    trained = [tiny_run(tiny_corpus, folder, "dense", *DENSE), tiny_run(tiny_corpus, folder, "tensors"), encoder, dlrm]
    assert run_processes(1, "train_runs", runs=trained) == [[0, 0, 0, 0]]
    return folder


def compressed(runs, name, output, params, format="low_rank"):
    return compress_run(runs / name, None, output, params, format, 2000, 2000)


@pytest.mark.parametrize(("name", "format"), [("dense", "low_rank"), ("dense", "block_train"), ("encoder", "low_rank")])
def test_it_has_at_most_so_many_numbers_and_a_loss_nearby(runs, tmp_path, name, format):
    whole = load_trained(runs / name).model
    size = sum(parameter.numel() for parameter in whole.parameters())
    params = round(0.9 * size)
    result = compressed(runs, name, tmp_path / "small", params, format)
    model = load_trained(tmp_path / "small").model
    assert result["before"]["params"] == size
    assert 0.98 * params < result["after"]["params"] == sum(p.numel() for p in model.parameters()) <= params
    assert result["before"]["loss"] < result["after"]["loss"] + 0.01 < result["before"]["loss"] + 0.2
    assert all(name in dict(model.named_modules()) for name in result["ranks"])


def test_almost_all_numbers_lose_almost_nothing_and_none_removes_the_blocks(runs, tmp_path):
    whole = load_trained(runs / "dense").model
    size = sum(parameter.numel() for parameter in whole.parameters())
    blocks = sum(m.weight.numel() for n, m in whole.named_modules() if isinstance(m, nn.Linear) and "layers" in n)
    almost = compressed(runs, "dense", tmp_path / "almost", size - 1)
    assert almost["after"]["loss"] == pytest.approx(almost["before"]["loss"], abs=0.02)
    none = compressed(runs, "dense", tmp_path / "none", size - blocks + 1)
    assert none["ranks"] == {}
    assert none["after"]["params"] == size - blocks


@pytest.mark.parametrize("stage", [0, 3])
def test_another_run_starts_from_it_on_two_processes(runs, tiny_corpus, tmp_path, stage):
    result = compressed(runs, "dense", tmp_path / "small", 3600)
    more = ("model.format=low_rank", f"run.start_from={tmp_path}/small", f"train.zero_stage={stage}", "optim.lr=1e-9")
    assert run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, tmp_path, "next", *more)]) == [[0], [0]]
    found = json.loads((tmp_path / "next/summary.json").read_text())
    assert found["params"] == result["after"]["params"]
    assert found["val_loss"] == pytest.approx(result["after"]["loss"], abs=0.05)
    assert losses(tmp_path, "next")[0] < result["after"]["loss"] + 0.5


def test_it_does_not_name_the_first_weights_of_the_run_that_it_is_from(runs, tmp_path):
    """A run with its configuration began with those weights, which are not the compressed ones."""
    run = shutil.copytree(runs / "dense", tmp_path / "later")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        text.replace("start_from: null\n  start_step: null", "start_from: a\n  start_step: 3")
    )
    assert load_trained(run).config.run.start_step == 3
    size = sum(parameter.numel() for parameter in load_trained(run).model.parameters())
    compress_run(run, None, tmp_path / "small", size - 1, "low_rank", 100, 100)
    section = load_trained(tmp_path / "small").config.run
    assert (section.start_from, section.start_step) == (None, None)


def test_rules_whose_options_dense_layers_ignored_are_replaced(runs, tiny_corpus, tmp_path):
    rules = "[{match: '*.0.*o_proj', order: 2}, {match: '*_proj', order: 2, rank: 4}]"
    ruled = tiny_run(tiny_corpus, runs, "ruled", *DENSE, f"tensor.layers={rules}", "train.batch_tokens=256")
    run_processes(2, "train_runs", runs=[ruled])
    compressed(runs, "ruled", tmp_path / "small", 3600)
    small = load_trained(tmp_path / "small")
    assert [rule.model_dump(exclude_none=True) for rule in small.config.tensor.layers] == [
        {"match": "*.0.*o_proj", "format": "low_rank", "options": {}},
        {"match": "*_proj", "format": "low_rank", "options": {}},
    ]
    assert small.micro_batch == load_trained(runs / "ruled").micro_batch == 256 // small.config.data.seq_len // 2


def test_a_rule_stays_for_the_layers_that_it_shapes(runs, tiny_corpus, tmp_path):
    rules = "[{match: '*_proj', order: 2, rank: 4}]"
    mixed = [*DENSE, "model.format={attention: tensor, mlp: dense, embedding: dense, head: dense}"]
    run_processes(1, "train_runs", runs=[tiny_run(tiny_corpus, runs, "mixed", *mixed, f"tensor.layers={rules}")])
    result = compressed(runs, "mixed", tmp_path / "small", load_size(runs / "mixed") - 200)
    found = load_trained(tmp_path / "small").config.tensor.layers
    assert found[-1].match == "*_proj"
    assert found[-1].rank == 4
    assert {rule.format for rule in found[:-1]} == {"low_rank"}
    assert {rule.match for rule in found[:-1]} >= {name for name in result["ranks"] if ".mlp." in name}


def load_size(run):
    return sum(parameter.numel() for parameter in load_trained(run).model.parameters())


def test_it_is_no_run_to_resume(runs, tiny_corpus, tmp_path):
    from comera_dist.config.reader import read_config
    from comera_dist.data.tasks import open_task
    from comera_dist.models.family import plan_model
    from comera_dist.run.start import find_start
    from comera_dist.runtime.processes import alone

    compressed(runs, "dense", tmp_path / "small", 3600)
    config = read_config(tmp_path / "small/config.yaml")
    task = open_task(config)
    with pytest.raises(CheckpointError, match=r"another run\.name and set run\.start_from=.*small"):
        find_start(config, task, lambda: plan_model(config, task.facts), tmp_path / "small/checkpoints", alone())


@pytest.mark.parametrize(
    ("name", "params", "format", "sentence"),
    [
        ("dense", 10**9, "low_rank", r"--params 1,000,000,000 is not possible: the model has .* name a number between"),
        ("dense", 10, "low_rank", r"--params 10 is not possible"),
        ("dense", 3600, "bottleneck", "the format bottleneck has not two factors with one rank"),
        ("dense", 3600, "absent", r"model\.format = absent is not possible: expected one of"),
        ("tensors", 1500, "low_rank", "no dense matrix in its blocks"),
        ("dlrm", 1500, "low_rank", r"model\.kind = dlrm has no blocks to compress; name a run of a model"),
        ("nothing", 3600, "low_rank", "has no config.yaml"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(runs, tmp_path, name, params, format, sentence):
    with pytest.raises(ComeraError, match=sentence) as raised:
        compressed(runs, name, tmp_path / "out", params, format)
    assert isinstance(raised.value, ConfigError | CheckpointError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keeps", ["checkpoints", "config.yaml"])
def test_a_run_is_not_written_over(runs, tmp_path, keeps):
    """That is said before anything is read and measured. A run whose checkpoints were removed is one, too."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / keeps).symlink_to(runs / "tensors" / keeps)
    with pytest.raises(RunDirectoryError, match=r"out holds a run, expected a new folder; name another one"):
        compressed(runs, "nothing", tmp_path / "out", 3600)


@pytest.mark.parametrize("name", ["small model", "größer", ".", ".."])
def test_a_folder_that_no_run_can_have_is_refused(runs, tmp_path, name):
    """It was written, and no command could read it."""
    with pytest.raises(RunDirectoryError, match=r"cannot be the directory of a run, .*; name another one"):
        compressed(runs, "nothing", tmp_path / name if name[0] != "." else Path(name), 3600)


def test_the_command_prints_a_table_or_json(runs, tmp_path, capsys, monkeypatch):
    common = ["compress.py", "--run", str(runs / "dense"), "--params", "3600", "--tokens", "500", "--max-tokens", "500"]
    monkeypatch.setattr("sys.argv", [*common, "--output", str(tmp_path / "a")])
    assert main() == 0
    table = capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*common, "--output", str(tmp_path / "b"), "--json"])
    assert main() == 0
    result = json.loads(capsys.readouterr().out)
    assert f"{result['before']['params']:,}" in table
    assert f"{result['after']['params']:,}" in table
    assert main() == 2
    assert "expected a new folder" in capsys.readouterr().err
    first, second = (load_trained(tmp_path / name).model.state_dict() for name in ("a", "b"))
    assert all(torch.equal(first[name], second[name]) for name in first)
