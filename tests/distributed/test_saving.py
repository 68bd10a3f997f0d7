"""Saves of several processes: what goes wrong on one of them, and copies in remote storage."""

import re
import shutil

import pytest
from forked import run_processes
from support import losses, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
CASES = [("weight", 0), ("weight", 1), ("weight", 3), ("disk", 0), ("none", 0), ("adapting gate", 0)]


@pytest.fixture(scope="module")
def saved(tiny_corpus, tmp_path_factory):
    """The error of each case on both processes, and the names in its folder of checkpoints."""
    directory, runs = tmp_path_factory.mktemp("saving"), []
    for fault, stage in CASES:
        options = ["checkpoint.keep=9", "train.steps=3", f"train.zero_stage={stage}"]
        if fault == "adapting gate":
            options += ["ranks.adapt=true", "ranks.sync_every=3"]
        run = tiny_run(tiny_corpus, directory, f"{fault}_{stage}".replace(" ", "_"), *options)
        runs.append({"overrides": run, "fault": fault, "process": 1})
    errors = zip(*run_processes(2, "save_with_faults", runs=runs), strict=True)
    names = [
        sorted(path.name for path in (directory / f"{fault}_{stage}".replace(" ", "_") / "checkpoints").iterdir())
        for fault, stage in CASES
    ]
    return dict(zip(CASES, zip(errors, names, strict=True), strict=True))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_weight_whose_last_bit_differs_on_one_process_is_named(saved, stage):
    errors, names = saved["weight", stage]
    for error in errors:
        assert error.startswith(
            "TrainingError: model.norm.weight on process 1 is not model.norm.weight on process 0 (1"
        )
        assert "nothing was saved" in error
    assert names == ["LATEST", "step_0000001"]


def test_a_disk_that_is_full_for_one_process_is_a_sentence_on_all(saved):
    errors, names = saved["disk", 0]
    for error in errors:
        assert error.startswith("CheckpointError: saving ")
        assert re.search(
            r"step_0000002 failed \(.*(large|27).*\); checkpoints of earlier steps are as they were", error
        )
    assert names == ["LATEST", "step_0000001"]


@pytest.mark.parametrize("fault", ["none", "adapting gate"])
def test_healthy_processes_save(saved, fault):
    """Gates that adapt may differ by `ranks.drift_tolerance`: their sync compares them."""
    errors, names = saved[fault, 0]
    assert errors == ("no error",) * 2
    assert names == ["LATEST", "step_0000001", "step_0000002"]


def test_a_run_whose_disk_is_lost_goes_on_from_its_mirror(tiny_corpus, tmp_path):
    def run(folder, *options):
        keys = ("train.steps=12", "schedule.kind=constant", "schedule.warmup_steps=0", "checkpoint.every=4")
        return tiny_run(tiny_corpus, tmp_path / folder, "a", *keys, *options)

    mirror = f"checkpoint.mirror=file://{tmp_path}/remote"
    run_processes(2, "train_runs", runs=[run("straight"), run("lost", mirror, "train.steps=8")])
    shutil.rmtree(tmp_path / "lost")
    run_processes(2, "train_runs", runs=[run("lost", mirror)])
    assert losses(tmp_path / "lost", "a") == losses(tmp_path / "straight", "a")
    ours, theirs = (saved_tensors(tmp_path / folder, "a", 12) for folder in ("lost", "straight"))
    assert all((ours[name] == tensor).all() for name, tensor in theirs.items())
    copy = tmp_path / "remote/a"
    assert (copy / "summary.json").exists()
    # As a kill during the last copy leaves it.
    (copy / "summary.json").unlink()
    shutil.rmtree(copy / "checkpoints/step_0000012")
    run_processes(2, "train_runs", runs=[run("lost", mirror)])
    assert (copy / "summary.json").exists()
    assert (copy / "checkpoints/step_0000012/manifest.json").exists()


def test_the_benchmark_measures_both_kinds_of_saves(tiny_corpus, tmp_path):
    rows, _ = run_processes(2, "measure_saves", overrides=tiny_run(tiny_corpus, tmp_path, "x", "train.steps=999"))
    goes_on, waits = rows
    assert 0 < goes_on["stall ms"] < goes_on["published after ms"]
    assert waits["stall ms"] > 0
