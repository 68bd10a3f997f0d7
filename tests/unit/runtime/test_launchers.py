"""Every launcher's variables give a process its place; a half set environment is refused."""

import signal
import subprocess
import sys
from importlib import import_module

import pytest

from comera_dist.errors import LaunchError
from comera_dist.runtime.launchers import SRUN, Place, _first_host, _is_launcher, find_place, has_ended

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "123"}
STEP = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77"}
NODES = {"SLURM_JOB_NODELIST": "login,gpu[1-2]", "SLURM_STEP_NODELIST": "gpu[03-07,9],x"}
BATCH_SCRIPT = {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}


def place(variables):
    found = find_place(variables)
    return found.index, found.count, found.local, found.address


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, 0, "127.0.0.1")),
        (TORCHRUN, (3, 4, 1, "a")),
        (STEP | NODES, (3, 4, 1, "gpu03")),
        (STEP | NODES | {"ENVIRONMENT": "BATCH"}, (3, 4, 1, "gpu03")),
        (STEP | NODES | {"MASTER_ADDR": "b"}, (3, 4, 1, "b")),
        (BATCH_SCRIPT | NODES, (0, 1, 0, "127.0.0.1")),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4"} | NODES, (0, 1, 0, "127.0.0.1")),
        (OPENMPI, (1, 2, 1, "127.0.0.1")),
        (HYDRA, (1, 2, 1, "127.0.0.1")),
        # srun has started one daemon of mpirun on each host, and these the processes.
        (OPENMPI | BATCH_SCRIPT | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (1, 2, 1, "127.0.0.1")),
        (HYDRA | STEP | NODES, (1, 2, 1, "127.0.0.1")),
        # srun --mpi=pmi2
        (STEP | NODES | {"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, 1, "gpu03")),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, 0, "127.0.0.1")),
        # a shell that salloc has started as a step of its own
        (
            STEP | NODES | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"},
            (0, 1, 0, "127.0.0.1"),
        ),
    ],
)
def test_a_process_finds_its_place(variables, expected):
    assert place(variables) == expected


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not set beside RANK = 1"),
        ({"WORLD_SIZE": "2"}, "RANK is not set beside WORLD_SIZE = 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK = 'one' is not a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "contradict each other"),
        ({"SLURM_PROCID": "1"}, "SLURM_STEP_NUM_TASKS is not set beside SLURM_PROCID = 1"),
        ({"PMIX_RANK": "0"}, "PMIX_SIZE is not set beside PMIX_RANK = 0"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "MASTER_ADDR is not set and OpenMPI does not tell"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT = 'http' is not a number"),
    ],
)
def test_half_set_variables_are_refused(variables, sentence):
    with pytest.raises(LaunchError, match=sentence):
        find_place(variables)


@pytest.mark.parametrize("command", ["generate", "predict"])
def test_a_command_for_one_process_is_refused_on_several(command, monkeypatch, capsys):
    words = [f"launch/{command}.py", "--run", "runs/none", "--input", "rows.csv"]
    monkeypatch.setattr(sys, "argv", words[: 3 if command == "generate" else 5])
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert import_module(f"comera_dist.commands.{command}").main() == 2
    assert f"launch/{command}.py works on one process and 4 were started" in capsys.readouterr().err


def test_jobs_on_one_host_meet_at_ports_of_their_own():
    ports = [find_place(STEP | NODES | {"SLURM_JOB_ID": str(job)}).port for job in range(20)]
    assert len(set(ports)) == 20
    assert all(12000 <= port < 32000 for port in ports)
    assert find_place(OPENMPI).port == Place.port
    assert find_place(TORCHRUN).port == 123


def test_the_place_is_handed_on_in_the_variables_of_torch():
    assert find_place(find_place(STEP | NODES).variables()) == find_place(STEP | NODES)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("n[12-15]", "n12"), ("r[1-2]n[003,5]-ib,x", "r1n003-ib"), ("gpu-a[7]", "gpu-a7")],
)
def test_first_host_of_slurms_short_form(nodes, first):
    assert _first_host(nodes) == first


class Commanded:
    def __init__(self, command):
        self._command = command

    def cmdline(self):
        return self._command.split()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/x/.venv/bin/python3.11 /x/.venv/bin/deepspeed --num_accelerators 2 launch/pretrain.py", True),
        ("python -u -m deepspeed.launcher.launch --world_info=x", True),
        ("python /usr/bin/torchrun --nproc_per_node 2 launch/pretrain.py", True),
        ("mpirun -n 2 python launch/pretrain.py", True),
        ("make quickstart", False),
        ("bash -c deepspeed launch/pretrain.py", False),
        ("timeout 100 deepspeed launch/pretrain.py", False),
        ("python -m pytest tests/test_deepspeed.py", False),
        ("", False),
    ],
)
def test_a_launcher_is_known_by_its_command(command, expected):
    assert _is_launcher(Commanded(command)) == expected


def test_a_process_that_is_killed_has_ended_though_nobody_has_waited_for_it():
    import psutil

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = psutil.Process(child.pid)
    assert not has_ended(watched)
    child.send_signal(signal.SIGKILL)
    while not has_ended(watched):
        pass
    child.wait()
    assert has_ended(watched)


def test_srun_is_told_from_its_batch_script_by_the_step():
    assert SRUN.is_at_work(BATCH_SCRIPT)
    assert find_place(BATCH_SCRIPT | {"SLURM_STEP_ID": "0"}).count == 4
