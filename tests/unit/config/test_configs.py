"""Every configuration opens with what it costs to make and run it, in commands that are possible."""

import importlib
import shlex

import pytest
from support import ROOT

from comera_dist.config.reader import read_config

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
COMMANDS = [
    pytest.param(line.removeprefix("#   "), id=f"{path.stem}-{number}")
    for path in CONFIGS
    for number, line in enumerate(path.read_text().splitlines())
    if line.startswith("#   ")
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_head_says_how_to_start_it(path):
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(line.startswith("#   ") and f"--config configs/{path.name}" in line for line in head)
    assert read_config(path).run.name == path.stem


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_heads_are_possible(command):
    words = shlex.split(command)
    if words[0] == "make":
        return  # tests/test_readme.py runs it
    script = next(word for word in words if word.endswith(".py"))
    arguments = words[words.index(script) + 1 :]
    assert (ROOT / script).is_file()
    if script.startswith("data_prep/"):
        importlib.import_module(script.removesuffix(".py").replace("/", ".")).parse_arguments(arguments)
    elif "--config" in arguments:
        read_config(ROOT / arguments[arguments.index("--config") + 1], [word for word in arguments if "=" in word])
    else:
        assert script == "launch/evaluate.py"
