"""Each kind of fault of `make soak`: the run that is finished afterwards is the run in peace, bit for bit."""

import json
import math
import shutil
import signal
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file
from soak.attacks import Attack
from soak.campaigns import Subject, attacked, differences, in_peace
from soak.elastic import Course, Matrix, Place, differences_of_losses
from support import TINY, metrics

pytestmark = pytest.mark.distributed
STEPS = 80
RANKS = ("ranks.adapt=true", "ranks.sync_every=4", "ranks.target_fraction=0.6")
ATTACKS = [
    Attack(signal.SIGTERM, "one", "start", 1, 0.5, process=1),
    Attack(signal.SIGKILL, "one", "cut", 1, 0.01, process=1),
    Attack(signal.SIGKILL, "all", "save", 1, 0.002, process=0),
    Attack(signal.SIGINT, "all", "validation", 1, 0.0, process=0),
    Attack(signal.SIGUSR1, "all", "start", 1, 0.2, process=0),
    Attack(signal.SIGSTOP, "all", "start", 1, 0.2, process=0),
    Attack(signal.SIGKILL, "one", "start", 1, 0.2, process=0),
]


@pytest.fixture(scope="module")
def subject(tiny_corpus):
    steps = (f"train.steps={STEPS}", "checkpoint.every=5", "eval.every=10", f"data.corpus={tiny_corpus}")
    return Subject("ranks adapt", 2, (*TINY, *steps, *RANKS, "train.zero_stage=1"))


@pytest.fixture(scope="module")
def runs(subject, tmp_path_factory):
    directory = tmp_path_factory.mktemp("soak")
    in_peace(subject, directory)
    return directory


def test_a_run_survives_one_attack_after_the_other(subject, runs):
    report = attacked(subject, runs, "attacked", ATTACKS)
    assert not report.faults, "\n".join(report.faults)
    assert report.attacks[:4] == ATTACKS[:4]


def test_a_run_survives_the_death_of_its_launcher(subject, runs):
    attack = Attack(signal.SIGKILL, "launcher", "save", 2, 0.0, process=0)
    report = attacked(replace(subject, has_launcher=True), runs, "launched", [attack])
    assert not report.faults, "\n".join(report.faults)
    assert report.starts == 2


def test_runs_resume_on_other_processes_and_stages(tiny_corpus, tmp_path):
    (row,) = Matrix(tmp_path, tiny_corpus, "spectral", "fp32", [Place(1, 0), Place(2, 1)], ["in the late stage"]).rows()
    assert row["pairs"] == 4
    assert row["good"], row


def test_differences_are_told_before_and_after_other_ranks():
    ranks = {0: {"a": [4]}, 1: {"a": [4]}, 2: {"a": [3]}}
    one = Course([4.0, 3.0, 2.0], [9, 9, 8], ranks)
    same = Course([4.0, 3.25, 2.0], [9, 9, 8], ranks)
    other = Course([4.125, 3.0, 1.5], [9, 9, 7], ranks | {2: {"a": [2]}})
    assert differences_of_losses([same, other], one) == (0.25, 0.5)


def test_a_run_that_differs_is_found(runs):
    other = shutil.copytree(runs / "peace", runs / "other")
    assert not differences(runs / "peace", other)
    records = metrics(runs, "other")
    records[-1]["loss"] = math.nextafter(records[-1]["loss"], math.inf)
    (other / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shard = next((other / f"checkpoints/step_{STEPS:07d}").glob("*.safetensors"))
    tensors = load_file(shard)
    changed = [name for name, tensor in tensors.items() if tensor.is_floating_point()][:2]
    save_file(tensors | {name: tensors[name] + 1e-3 for name in changed}, shard)
    found = differences(runs / "peace", other)
    assert len(found) == 3, found
