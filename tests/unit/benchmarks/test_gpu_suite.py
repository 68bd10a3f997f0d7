"""The one command for GPU machines, with a Python that only pretends to run the parts."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from support import ROOT

SUITE = ROOT / "benchmarks" / "gpu_suite.sh"
# Stands for Python: the parts are made up, everything else is done by the real one.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-c import"*) exec {python} "$@" ;;
  *pytest*--ignore*) echo "3 passed" ;;
  *pytest*) trap 'echo "F: 1 failed"; exit 2' INT; while :; do sleep 0.1; done ;;
  benchmarks/layers.py*) sleep 0.1; cp {result} {folder}/layers_cuda.json ;;
  benchmarks/blocks.py*) echo "a table of blocks" ;;
  benchmarks/step.py*) echo "the step broke"; exit 3 ;;
  benchmarks/embedding.py*) exec sleep 30 ;;
  *) exec {python} "$@" ;;
esac
"""
RESULT = {"title": "layers, bf16", "machine": {"device": "G", "torch": "2"}, "rows": [{"side": "a|b", "ms": None}]}


def run(script, *arguments, **environment):
    return subprocess.run(
        ["bash", str(script), *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )


def test_the_script_is_valid_bash():
    assert subprocess.run(["bash", "-n", str(SUITE)]).returncode == 0


def test_budgets_leave_time_to_write_within_nine_minutes():
    lines = [line.strip() for line in SUITE.read_text().splitlines()]
    first = lines.index("PARTS=(") + 1
    seconds = [int(line.split("|")[1]) for line in lines[first : lines.index(")", first)]]
    assert len(seconds) == 6
    assert sum(seconds) <= 9 * 60 - 15


def test_a_machine_without_a_gpu_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    done = run(SUITE, PYTHON=sys.executable)
    assert done.returncode == 2
    assert done.stderr.startswith("no CUDA device was found")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_python_is_told_from_a_missing_gpu():
    done = run(SUITE, PYTHON="no-such-python")
    assert done.returncode == 2
    assert "no-such-python cannot import what the benchmarks need; install this repository there" in done.stderr
    assert "CUDA" not in done.stderr


def test_an_unknown_option_is_refused():
    done = run(SUITE, "--quick", PYTHON=sys.executable)
    assert done.returncode == 2
    assert "--quick" in done.stderr


def test_parts_that_fail_or_take_too_long_are_named_and_do_not_stop_the_others(tmp_path):
    # A repository of its own: results of the real one stay as they are.
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    script = tmp_path / "benchmarks" / "gpu_suite.sh"
    script.write_text(SUITE.read_text().replace('"embedding|60|', '"embedding|1|').replace('"kernel|60|', '"kernel|1|'))
    for name in ("markdown.py", "machine.py"):
        (tmp_path / "benchmarks" / name).write_text((ROOT / "benchmarks" / name).read_text())
    (folder / "old.json").write_text("{}")
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    python = tmp_path / "python"
    python.write_text(PYTHON.format(result=tmp_path / "result.json", folder=folder, python=sys.executable))
    python.chmod(0o755)
    out = tmp_path / "out"

    done = run(script, "--dry-run", PYTHON=str(python), OUT=str(out))

    assert done.returncode == 1
    [report] = out.glob("gpu_suite_*.md")
    text = report.read_text()
    for heading in (
        "## tests: done",
        "## blocks: done",
        "## layers: done",
        "## step: failed with status 3",
        "## embedding: stopped after 1 s",
        "## kernel: stopped after 1 s",
        "F: 1 failed",
    ):
        assert heading in text
    assert f"torch {version('torch')}" in text
    assert "| a\\|b | – |" in text
    assert "the step broke" in text
    assert sorted(path.name for path in out.glob("*.json")) == ["layers_cuda.json"]


def test_a_result_becomes_a_table(tmp_path):
    file = tmp_path / "layers_cuda.json"
    file.write_text(json.dumps(RESULT))
    command = [sys.executable, str(ROOT / "benchmarks" / "markdown.py"), str(file)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n") + "\n" == (
        "### layers_cuda\n\nlayers, bf16\n\ndevice G, torch 2\n\n| side | ms |\n| --- | --- |\n| a\\|b | – |\n"
    )
