"""Curves of a killed and resumed run with adapting ranks are the lines of its log files."""

import json

import pytest
from forked import run_processes
from support import cut_back
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_rank_adaptation import adapting

pytestmark = pytest.mark.distributed


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_curves_are_the_lines_of_the_log_files(tiny_corpus, tmp_path):
    def run(name):
        return adapting(tiny_corpus, tmp_path, name, "tensorboard.enabled=true", "eval.every=5")

    run_processes(1, "train_runs", runs=[run("whole")])
    cut_back(tmp_path, "whole", "resumed", 9)
    run_processes(1, "train_runs", runs=[run("resumed")])
    curves = EventAccumulator(str(tmp_path / "resumed/tensorboard")).Reload()
    logged = {"": lines(tmp_path / "resumed/metrics.jsonl"), "ranks/": lines(tmp_path / "resumed/ranks.jsonl")}
    for prefix, name in (("", "loss"), ("", "val_loss"), ("", "flops_per_second"), ("ranks/", "size")):
        expected = [(record["step"], record[name]) for record in logged[prefix] if name in record]
        found = [(event.step, event.value) for event in curves.Scalars(prefix + name)]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([value for _, value in expected])
    assert [record["step"] for record in logged[""]] == list(range(1, 15))
