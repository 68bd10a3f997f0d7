"""A supervised run under each launcher goes on by itself when a process is killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_processes
from support import ROOT, environment, free_port, losses, tiny_run
from test_cluster_recipes import BIN, SRUN

pytestmark = pytest.mark.distributed
SCRIPT = [str(ROOT / "tests/distributed/dies_once.py"), "--config", str(ROOT / "tests/defaults.yaml")]
KEYS = ("train.steps=40", "checkpoint.every=10", "schedule.warmup_steps=0")
LAUNCHERS = {
    "deepspeed": (f"{BIN}/deepspeed", "--num_accelerators", "1", "--master_port"),
    "torchrun": (f"{BIN}/torchrun", "--nproc_per_node", "1", "--master_port"),
}
JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}  # as Slurm tells a job, beside the variables of its tasks


@pytest.fixture(scope="module")
def straight(tiny_corpus, tmp_path_factory):
    """Losses of the run that nobody kills, on one process as all are: a start takes seconds of a core."""
    directory = tmp_path_factory.mktemp("straight")
    run_processes(1, "train_runs", runs=[tiny_run(tiny_corpus, directory, "straight", *KEYS)])
    return losses(directory, "straight")


def launcher(name: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The start of a command, and variables. A program in place of Slurm's starts the task."""
    if name != "srun":
        return [*LAUNCHERS[name], free_port()], {}
    srun = folder / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    return [str(srun), "--ntasks=1", sys.executable], JOB | {"FAKES": str(folder)}


def one_id_in_both_starts(folder: Path) -> bool:
    """Whether W&B kept two runs without a network, both of the id in run.json."""
    found = [path.name for path in folder.glob("wandb/offline-run-*")]
    return [name.endswith(json.loads((folder / "run.json").read_text())["wandb_id"]) for name in found] == [True, True]


@pytest.mark.parametrize("name", [*LAUNCHERS, "srun"])
def test_a_killed_run_is_finished_without_a_hand(name, tiny_corpus, tmp_path, straight):
    start, variables = launcher(name, tmp_path)
    wandb = "wandb.mode=offline" if name == "deepspeed" else "wandb.mode=disabled"
    run, folder = tiny_run(tiny_corpus, tmp_path, "killed", *KEYS, wandb), tmp_path / "killed"
    supervise = [sys.executable, str(ROOT / "launch/supervise.py"), "--run", str(folder), "--pause", "0.1", "--"]
    place = {"env": environment(**variables), "cwd": ROOT}
    done = subprocess.run([*supervise, *start, *SCRIPT, *run], capture_output=True, text=True, timeout=200, **place)
    assert done.returncode == 0, done.stdout + done.stderr
    starts = json.loads((folder / "run.json").read_text())["starts"]
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert losses(tmp_path, "killed") == straight
    assert name != "deepspeed" or one_id_in_both_starts(folder)
