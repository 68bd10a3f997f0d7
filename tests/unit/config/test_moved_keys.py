"""Keys that have moved: old commands, files and runs are read, and a note says where the keys are now."""

import subprocess
import sys
from contextlib import suppress

import pytest
import yaml
from support import ROOT, environment

from comera_dist.config.moved import MOVED
from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError

RUN = ["train.steps=9", "ranks.adapt=true", "ranks.sync_every=1"]
VALUES = {"ranks.threshold": 0.25, "ranks.patience": 3, "ranks.shrink_when": 0.5, "ranks.grow": 2}


def policy(path, *overrides, notes=None):
    note = None if notes is None else notes.append
    return read_config(path, [*RUN, *overrides], note).ranks.policy


def problems(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        read_config(path, [*RUN, *overrides])
    return str(caught.value).splitlines()


def test_every_old_key_is_the_new_one():
    assert VALUES.keys() == MOVED.keys()
    for old, value in VALUES.items():
        notes = []
        found = policy(None, f"{old}={value}", f"{old}={value}", notes=notes)
        assert found == policy(None, f"{MOVED[old]}={value}")
        assert found != policy(None)
        assert notes == [f"{old} is now {MOVED[old]}; it is still read"]


@pytest.mark.parametrize(
    "text",
    ["{patience: 3, grow: 2}", "{patience: 3, policy: {grow: 2}}", "{patience: 3, policy: threshold, grow: 2}"],
)
def test_files_and_whole_sections_hold_old_keys_too(tmp_path, text):
    (tmp_path / "old.yaml").write_text(f"ranks: {text}\n")
    expected = policy(None, "ranks.policy.patience=3", "ranks.policy.grow=2")
    assert policy(tmp_path / "old.yaml") == expected
    section = text.replace("{", "{adapt: true, sync_every: 1, ", 1)
    assert policy(None, f"ranks={section}") == expected


@pytest.mark.parametrize("override", ["ranks.patience=5", "ranks.policy.patience=5"])
@pytest.mark.parametrize("text", ["{patience: 3}", "{policy: {patience: 3}}", "{patience: 3, policy: {patience: 3}}"])
def test_the_command_line_beats_the_file_by_either_name(tmp_path, text, override):
    (tmp_path / "run.yaml").write_text(f"ranks: {text}\n")
    assert policy(tmp_path / "run.yaml", override).patience == 5


@pytest.mark.parametrize(
    "overrides",
    [
        ["ranks.patience=3", "ranks.policy.patience=5"],
        ["ranks.policy.patience=5", "ranks.patience=3"],
        ["ranks={adapt: true, sync_every: 1, patience: 3, policy: {patience: 5}}"],
    ],
    ids=str,
)
def test_two_values_by_two_names_are_one_sentence(overrides):
    (sentence,) = problems(None, *overrides)
    assert sentence.endswith("are one key; keep ranks.policy.patience")
    assert "ranks.patience = 3" in sentence
    assert "ranks.policy.patience = 5" in sentence


def test_two_values_in_one_file_are_one_sentence(tmp_path):
    (tmp_path / "run.yaml").write_text("ranks: {patience: 3, policy: {patience: 5}}\n")
    (sentence,) = problems(tmp_path / "run.yaml")
    assert sentence == "ranks.patience = 3 and ranks.policy.patience = 5 are one key; keep ranks.policy.patience"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("ranks.patience=0", "ranks.policy.patience = 0 is not possible: input should be greater than 0"),
        ("ranks.patiense=3", "ranks.patiense is not a known key; did you mean ranks.policy.patience?"),
        ("ranks.treshold=3", "ranks.treshold is not a known key; did you mean ranks.policy.threshold?"),
        (
            "ranks.policy.patiense=3",
            "ranks.policy.patiense is not a known key; did you mean ranks.policy.patience?",
        ),
    ],
)
def test_mistakes_name_the_new_key(override, sentence):
    assert problems(None, override) == [sentence]


def test_an_old_key_has_no_effect_without_adaptation_either():
    (sentence,) = problems(None, "ranks.adapt=false", "ranks.sync_every=100", "ranks.patience=3")
    assert sentence.startswith("ranks.policy.patience has no effect while ranks.adapt is false; ")
    assert read_config(None, ["train.steps=9", "ranks.patience=2"]).ranks.policy.patience == 2


@pytest.mark.parametrize("odd", ["5", "null", "[1]", "{1: 2}", "true"])
def test_odd_sections_are_no_traceback(tmp_path, odd):
    (tmp_path / "run.yaml").write_text(f"ranks: {{policy: {odd}, patience: 3}}\n")
    for text in (f"ranks={odd}", f"ranks.policy={odd}", "ranks.patience=0x" + "f" * 5000):
        for overrides in ([text], [text, "ranks.patience=3"], ["ranks.patience=3", text]):
            for path in (None, tmp_path / "run.yaml"):
                with suppress(ConfigError):
                    read_config(path, overrides)


def test_a_resolved_configuration_of_an_earlier_version_is_read(tmp_path):
    tree = read_config(ROOT / "configs/quickstart_ranks.yaml").model_dump(mode="json")
    keys = tree["ranks"].pop("policy")
    tree["ranks"] |= {key: value for key, value in keys.items() if key != "kind"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert read_config(tmp_path / "config.yaml") == read_config(ROOT / "configs/quickstart_ranks.yaml")


@pytest.mark.parametrize("process", [0, 1])
def test_the_first_process_says_so_on_stderr(process):
    command = [sys.executable, "launch/pretrain.py", "--config", "tests/defaults.yaml", "ranks.patience=0"]
    place = {"RANK": str(process), "LOCAL_RANK": str(process), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    variables = environment(MASTER_PORT="29999", PYTHONPATH=str(ROOT), **place)
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    note = "Note: ranks.patience is now ranks.policy.patience; it is still read.\n"
    assert (done.returncode, done.stderr.count(note)) == (2, 1 - process)
