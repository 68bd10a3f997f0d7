"""Processes that were started with other settings, data or code than the first do not train together."""

import re

import pytest
import torch

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError, DataError, LaunchError
from comera_dist.run import same_start
from comera_dist.run.same_start import check_same_data, check_same_start
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.software import code_sha256, software


class Second(Processes):
    """Process 1 of 2, which hears what the first would say."""

    def __init__(self, heard):
        super().__init__(1, 2, torch.device("cpu"))
        object.__setattr__(self, "heard", heard)

    def from_first(self, thing):
        return self.heard

    def sum(self, values):
        return values

    def gather(self, thing):
        return [thing]


class Kept(Second):
    """What the first process says is kept in `heard`."""

    def from_first(self, thing):
        self.heard.append(thing)
        return thing


def said_by_first(*overrides):
    heard = []
    check_same_start(read_config(None, ["train.steps=4", *overrides]), Kept(heard))
    return heard[0]


def test_the_same_settings_start(tmp_path):
    config = read_config(None, ["train.steps=4", f"data.corpus={tmp_path}"])  # its place may be another one
    check_same_start(config, Second(said_by_first()))


@pytest.mark.parametrize("other", ["optim.lr=0.5", "run.seed=9", "train.steps=5", "checkpoint.mirror=file:///m"])
def test_another_setting_is_named(other):
    key, value = other.split("=")
    with pytest.raises(ConfigError, match=rf"^{key} = {value} on process 1 of host \S+ and \S+ on process 0, .*"):
        check_same_start(read_config(None, ["train.steps=4", other]), Second(said_by_first()))


@pytest.mark.parametrize("name", ["torch", "code of comera_dist"])
def test_other_software_is_named(monkeypatch, name):
    heard = said_by_first()
    monkeypatch.setattr(same_start, "software", lambda: software() | {name: "other"})
    words = (
        rf"^{name} is other on process 1 of host \S+ and {re.escape(software()[name])} on process 0, expected the same"
    )
    with pytest.raises(LaunchError, match=words):
        check_same_start(read_config(None, ["train.steps=4"]), Second(heard))


def test_other_data_are_named():
    check_same_data("a", "corpora/x", Second("a"))
    with pytest.raises(DataError, match=r"^corpora/x on process 1 of host \S+ are other data than those of process 0"):
        check_same_data("b", "corpora/x", Second("a"))


def test_the_hash_of_the_code_follows_names_and_contents(monkeypatch, tmp_path):
    monkeypatch.setattr("comera_dist.runtime.software.PACKAGE", tmp_path)
    hashes = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("_shipped/c.py", "3"), ("d.txt", "4")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        hashes.append(code_sha256())
    assert len(set(hashes[:3])) == 3
    assert hashes[2] == hashes[3] == hashes[4]
