"""A supervised run under each launcher goes on by itself when a process is killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from forked import run_processes
from support import ROOT, environment, free_port, losses, tiny_run
from test_cluster_recipes import BIN, SRUN

pytestmark = pytest.mark.distributed
KEYS = ("train.steps=120", "checkpoint.every=15", "schedule.warmup_steps=0")
LAUNCHERS = {
    "deepspeed": (f"{BIN}/deepspeed", "--num_accelerators", "1", "--master_port"),
    "torchrun": (f"{BIN}/torchrun", "--nproc_per_node", "1", "--master_port"),
}
PROCESSES = {"deepspeed": 1, "torchrun": 1, "srun": 2}  # one where that is enough: a start takes seconds of a core
JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}  # as Slurm tells a job, beside the variables of its tasks


@pytest.fixture(scope="module")
def straight(tiny_corpus, tmp_path_factory):
    """Losses of the run that nobody kills, by its number of processes."""
    directory = tmp_path_factory.mktemp("straight")
    for count in (1, 2):
        run_processes(count, "train_runs", runs=[tiny_run(tiny_corpus, directory, f"on_{count}", *KEYS)])
    return {count: losses(directory, f"on_{count}") for count in (1, 2)}


def last(supervisor: int, count: int) -> psutil.Process:
    """The process of the highest rank."""
    below = psutil.Process(supervisor).children(recursive=True)
    names = ("RANK", "SLURM_PROCID")
    return next(one for one in below if str(count - 1) in (one.environ().get(name) for name in names))


def launcher(name: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The start of a command, and variables. A program in place of Slurm's starts two tasks."""
    if name != "srun":
        return [*LAUNCHERS[name], free_port()], {}
    srun = folder / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    return [str(srun), "--ntasks=2", sys.executable], JOB | {"FAKES": str(folder)}


def one_id_in_both_starts(folder: Path) -> bool:
    """Whether W&B kept two runs without a network, both of the id in run.json."""
    found = [path.name for path in folder.glob("wandb/offline-run-*")]
    return [name.endswith(json.loads((folder / "run.json").read_text())["wandb_id"]) for name in found] == [True, True]


@pytest.mark.parametrize("name", PROCESSES)
def test_a_killed_run_is_finished_without_a_hand(name, tiny_corpus, tmp_path, straight):
    start, variables = launcher(name, tmp_path)
    wandb = "wandb.mode=offline" if name == "deepspeed" else "wandb.mode=disabled"
    run, folder = tiny_run(tiny_corpus, tmp_path, "killed", *KEYS, wandb), tmp_path / "killed"
    command = [*start, str(ROOT / "launch/pretrain.py"), "--config", str(ROOT / "tests/defaults.yaml"), *run]
    supervise = [sys.executable, str(ROOT / "launch/supervise.py"), "--run", str(folder), "--pause", "0.1", "--"]
    with (tmp_path / "output").open("w") as output:
        supervisor = subprocess.Popen(
            [*supervise, *command], stdout=output, stderr=output, env=environment(**variables), cwd=ROOT
        )
        while not list(folder.glob("checkpoints/step_*")):
            assert supervisor.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.01)
        last(supervisor.pid, PROCESSES[name]).send_signal(signal.SIGKILL)
        assert supervisor.wait(timeout=200) == 0, (tmp_path / "output").read_text()
    starts = json.loads((folder / "run.json").read_text())["starts"]
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert losses(tmp_path, "killed") == straight[PROCESSES[name]]
    assert name != "deepspeed" or one_id_in_both_starts(folder)
