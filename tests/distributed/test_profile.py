"""Traces of steps: valid JSON of the first process, with the operations of the chosen steps, of the same training."""

import json
import re

import pytest
from forked import run_processes
from support import losses, tiny_run

from comera_dist.config.reader import read_config
from comera_dist.config.tree import Profile
from comera_dist.errors import ConfigError
from comera_dist.run.profiling import StepProfile

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("profiled")
    several = [
        tiny_run(tiny_corpus, directory, "traced", "train.steps=5", "log.profile.steps=3-4"),
        tiny_run(tiny_corpus, directory, "plain", "train.steps=5"),
        # The first start ends within the range, and the second one begins within it.
        tiny_run(tiny_corpus, directory, "resumed", "train.steps=3", "log.profile.steps=2-3"),
        tiny_run(tiny_corpus, directory, "resumed", "train.steps=5", "log.profile.steps=2-4"),
    ]
    run_processes(1, "train_runs", runs=several)
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, directory, "two", "log.profile.steps=2")])
    return directory


def events(directory, name, steps):
    trace = json.loads((directory / name / f"profile/steps_{steps}.json").read_text())
    return trace["traceEvents"]


def test_a_trace_has_the_operations_of_its_steps(runs):
    found = events(runs, "traced", "3-4")
    names = {event["name"] for event in found}
    assert {name for name in names if re.fullmatch(r"step \d+", name)} == {"step 3", "step 4"}
    for step in ("step 3", "step 4"):
        (whole,) = (event for event in found if event["name"] == step and event.get("cat") == "user_annotation")
        inside = {
            event["name"]
            for event in found
            if event.get("ph") == "X" and whole["ts"] <= event["ts"] and event["ts"] < whole["ts"] + whole["dur"]
        }
        assert inside >= {"aten::mm", "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu"}
        assert any("Backward" in name for name in inside)
        assert any(name.startswith("Optimizer.step") for name in inside)


def test_a_traced_run_is_the_same_training(runs):
    assert losses(runs, "traced") == losses(runs, "plain")
    assert not (runs / "plain/profile").exists()


def test_only_the_first_process_writes(runs):
    assert [path.name for path in (runs / "two/profile").iterdir()] == ["steps_2-2.json"]
    assert events(runs, "two", "2-2")


def test_a_resumed_run_traces_what_is_left(runs):
    assert sorted(path.name for path in (runs / "resumed/profile").iterdir()) == ["steps_2-3.json", "steps_4-4.json"]


def test_an_end_within_the_range_writes_what_there_is(tmp_path):
    traced = StepProfile(1, 9, tmp_path / "profile")
    with traced.around(1):
        pass
    traced.close()
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["steps_1-1.json"]
    traced.close()


def test_a_trace_that_cannot_be_written_ends_nothing(tmp_path, capsys):
    (tmp_path / "profile").write_text("a file")
    traced = StepProfile(1, 1, tmp_path / "profile")
    with traced.around(1):
        pass
    assert "The trace of steps cannot be written" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "bounds"), [("10-12", (10, 12)), (7, (7, 7)), ("7", (7, 7)), (None, None)])
def test_ranges_of_steps(text, bounds):
    assert Profile(steps=text).bounds == bounds


@pytest.mark.parametrize(
    "text", ["12-10", "0-3", "0", "3-", "-3", "1-2-3", "ten", "true", "1.5", "[1,2]", "1-9999999999"]
)
def test_other_ranges_are_refused(text):
    with pytest.raises(ConfigError, match="expected a step or a range of steps from 1 on, such as 10-12"):
        read_config(None, ["train.steps=20", f"log.profile.steps={text}"])


def test_steps_beyond_the_end_are_refused():
    with pytest.raises(
        ConfigError, match=r"log\.profile\.steps = 10-12 goes beyond the last of 11 steps; name earlier"
    ):
        read_config(None, ["train.steps=11", "log.profile.steps=10-12"])
