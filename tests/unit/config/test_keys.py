"""The list of configuration keys that `comera-config --keys` and the docs show."""

import subprocess
import sys

import pytest
import yaml
from support import ROOT

from comera_dist.config.keys import key_sections
from comera_dist.config.reader import read_config

SECTIONS = key_sections()
KEYS = [key for section in SECTIONS for key in section.keys]


def config_command(*arguments: str) -> str:
    command = [sys.executable, "launch/config.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def leaves(tree: dict, prefix: str = ""):
    for name, value in tree.items():
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]


@pytest.mark.parametrize("kind", ["decoder", "encoder", "dlrm"])
def test_every_key_of_a_configuration_is_listed(kind):
    config = read_config(None, [f"model.kind={kind}", "train.batch_size=32", "train.steps=9"])
    names = {key.name for key in KEYS}
    rules = {name.partition("[]")[0] for name in names if "[]" in name}
    assert set(leaves(config.model_dump(mode="json"))) <= names | rules


def test_types_and_defaults_are_written_as_in_yaml():
    written = {key.name: (key.type, key.default) for key in KEYS}
    assert written["train.steps"] == ("integer or null", "null")
    assert written["schedule.kind"] == ("cosine | wsd | linear | constant", "cosine")
    assert written["model.tie_embeddings"] == ("boolean", "false")
    assert written["tensor.layers[].match"] == ("text", "must be given")
    assert written["optim.betas"] == ("list of number", "[0.9, 0.95]")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_has_one_sentence(key):
    """Written as a string below the field."""
    assert key.sentence[:1].isupper()
    assert key.sentence.endswith(".")
    assert ". " not in key.sentence


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_every_section_has_a_text(section):
    assert section.text.endswith(".")


def test_the_command_lists_every_key():
    printed = config_command("--keys")
    assert not [key.name for key in KEYS if key.name not in printed]


def test_the_command_prints_a_configuration_that_can_be_read_again(tmp_path):
    (tmp_path / "all.yaml").write_text(config_command("configs/quickstart_ranks.yaml", "train.steps=700"))
    assert read_config(tmp_path / "all.yaml").train.steps == 700
    assert yaml.safe_load((tmp_path / "all.yaml").read_text())["ranks"]["adapt"] is True
