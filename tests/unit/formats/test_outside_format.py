"""A format from outside is one file and one line, and its layers train, are saved and go on."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from diagonal_format import DiagonalFormat
from support import ROOT, TINY, environment, losses, metrics, tiny_run

from comera_dist.commands.estimate import main
from comera_dist.config.reader import read_config
from comera_dist.config.registry import FORMATS
from comera_dist.errors import ConfigError
from comera_dist.formats.convert import LinearFormat, densify, tensorize
from comera_dist.models.family import build_model, plan_model

# Attention of the tiny decoder is square.
OWN = ["model.format.attention=diagonal", "tensor.diagonal.gain=2", "schedule.kind=constant"]


@pytest.fixture
def diagonal():
    FORMATS.add("diagonal", DiagonalFormat())
    yield
    FORMATS.remove("diagonal")


def test_it_trains_and_goes_on_from_its_checkpoint(tiny_corpus, tmp_path):
    def run(name, steps):
        return tiny_run(tiny_corpus, tmp_path, name, *OWN, f"train.steps={steps}", "optim.lr=0.01")

    starts = [run("straight", 8), run("again", 4), run("again", 8)]
    code = (
        "import json, sys; from comera_dist.config.registry import FORMATS; from diagonal_format import DiagonalFormat;"
        "FORMATS.add('diagonal', DiagonalFormat());"
        "import comera_dist; [comera_dist.train(comera_dist.read_config(None, one)) for one in json.loads(sys.argv[1])]"
    )
    command = [sys.executable, "-c", code, json.dumps(starts)]
    variables = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert losses(tmp_path, "again") == losses(tmp_path, "straight")
    assert losses(tmp_path, "straight")[-1] < losses(tmp_path, "straight")[0]
    assert metrics(tmp_path, "straight")[0]["params"] < 8000


def test_its_keys_and_mistakes_are_known_while_it_is_there(diagonal):
    config = read_config(None, ["train.steps=1", *OWN])
    assert config.tensor.options_of("diagonal").gain == 2
    with pytest.raises(ConfigError, match=r"did you mean tensor\.diagonal\.gain"):
        read_config(None, ["train.steps=1", "tensor.diagonal.gian=2"])
    with pytest.raises(ConfigError, match="embedding = diagonal is not possible: this format stores no tables"):
        read_config(None, ["train.steps=1", "model.format.embedding=diagonal"])


def test_it_is_used_in_a_users_model(diagonal):
    model = tensorize(torch.nn.Sequential(torch.nn.Linear(6, 6)), {"*": LinearFormat("diagonal")})
    x = torch.randn(3, 6)
    y = model(x)
    torch.testing.assert_close(densify(model)(x), y)
    with pytest.raises(ConfigError, match="is not square"):
        tensorize(torch.nn.Linear(6, 4), {"*": LinearFormat("diagonal")})


def test_as_a_head_it_must_compute_logits_in_chunks(diagonal):
    config = read_config(None, ["train.steps=1", "model.d_model=32", "model.format.head=diagonal"])
    with pytest.raises(ConfigError, match=r"^Diagonal\.forward takes no `then`, .* format for model\.format\.head"):
        build_model(config.model, plan_model(config, SimpleNamespace(vocab_size=32)), None)


def test_commands_know_it_in_a_script_that_adds_it(diagonal, tmp_path, monkeypatch, capsys):
    (tmp_path / "run.yaml").write_text("{}")
    command = ["estimate", "--config", f"{tmp_path}/run.yaml", "--vocab-size", "32", "--plans", *TINY, *OWN]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 0
    assert re.search(r"self_attn.*diagonal", capsys.readouterr().out)
