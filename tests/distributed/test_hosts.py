"""A run on two hosts gives the bits of a run on one, and survives a cable that is cut."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from forked import Ended, run_processes
from hosts import NAMES, end_on_hosts, let_in_by_ssh, replace_ssh, two_hosts, unplugged
from support import ROOT, environment, losses, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
STEPS = 8
BIN = os.path.dirname(sys.executable)
RECIPES = ROOT / "examples/clusters"
CONFIG = ["--config", "tests/defaults.yaml"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture(scope="module")
def on_one_host(tiny_corpus, tmp_path_factory):
    """The folder of a run of two processes on one host."""
    directory = tmp_path_factory.mktemp("one_host")
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, directory, "run")])
    return directory


def slurm(index: int, job: int) -> dict[str, str]:
    """What srun tells a task: `srun --nodes 2 --ntasks 2`."""
    own = {"SLURM_PROCID": str(index), "SLURM_LOCALID": "0", "SLURM_NODEID": str(index)}
    shared = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "host[0-1]"}
    return own | shared | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0"}


def by_slurm(hosts, job: int, scenario: str, **arguments) -> list[Ended]:
    return end_on_hosts(hosts, [slurm(i, job) for i in range(2)], scenario, **arguments)


def same_bits(directory, name: str, other, other_name: str, step: int = STEPS) -> None:
    """Compares all losses, and weights and moments after `step`."""
    assert losses(directory, name) == losses(other, other_name)
    found, expected = saved_tensors(directory, name, step), saved_tensors(other, other_name, step)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_slurm(hosts, tiny_corpus, tmp_path, on_one_host):
    ended = by_slurm(hosts, 1, "pretrain", overrides=tiny_run(tiny_corpus, tmp_path, "run"))
    assert [one.status for one in ended] == [0, 0], ended
    same_bits(tmp_path, "run", on_one_host, "run")


def end_all(commands: list[list[str]], folder, **extra: str) -> str:
    """Runs commands beside each other until all have ended well; returns all that they printed."""
    logs = [folder / f"{i}.log" for i in range(len(commands))]  # not pipes, which nobody would read meanwhile
    started = [
        subprocess.Popen(command, env=environment(**extra), cwd=ROOT, stdout=log.open("w"), stderr=subprocess.STDOUT)
        for command, log in zip(commands, logs, strict=True)
    ]
    statuses = [process.wait(timeout=200) for process in started]
    said = "".join(log.read_text() for log in logs)
    assert statuses == [0] * len(commands), said
    return said


def test_torchrun(hosts, tiny_corpus, tmp_path, on_one_host):
    command = [RECIPES / "torchrun.sh", *CONFIG, *tiny_run(tiny_corpus, tmp_path, "run")]
    variables = {"MASTER_ADDR": NAMES[0], "NODES": "2", "PROCESSES": "1", "TORCHRUN": f"{BIN}/torchrun"}
    end_all([[*host.command, "env", f"NODE_RANK={i}", *command] for i, host in enumerate(hosts)], tmp_path, **variables)
    same_bits(tmp_path, "run", on_one_host, "run")


@pytest.fixture
def deepspeed(tiny_corpus, tmp_path):
    """The command and the variables of a run on both hosts."""
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=1\n" for name in NAMES))
    command = [RECIPES / "deepspeed.sh", *CONFIG, *tiny_run(tiny_corpus, tmp_path, "run")]
    return command, {"HOSTFILE": f"{tmp_path}/hostfile", "DEEPSPEED": f"{BIN}/deepspeed"}


@pytest.mark.skipif(not (shutil.which("pdsh") and shutil.which("sshd")), reason="pdsh or sshd is not installed")
def test_deepspeed_over_ssh(hosts, deepspeed, tmp_path, on_one_host):
    command, variables = deepspeed
    let_in_by_ssh(hosts, tmp_path)
    end_all([[*hosts[0].command, *command]], tmp_path, **variables)
    same_bits(tmp_path, "run", on_one_host, "run")


def test_deepspeed_over_other_doors(hosts, deepspeed, tmp_path, on_one_host):
    """Where pdsh and sshd are not installed: two commands of these names enter the hosts as this test does."""
    command, variables = deepspeed
    fakes = replace_ssh(hosts, tmp_path)
    end_all([command], tmp_path, PATH=f"{fakes}:{os.environ['PATH']}", **variables)
    same_bits(tmp_path, "run", on_one_host, "run")


LONG, TIMEOUT = 100, 6
LONG_KEYS = [f"train.steps={LONG}", "checkpoint.every=10"]


def wait_for_step(log, step: int, run: Future) -> None:
    while not log.exists() or log.read_text().count("\n") < step:
        assert not run.done(), run.result()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tiny_corpus, tmp_path_factory):
    """The folder of a longer run of two processes on one host."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, directory, "run", *LONG_KEYS)])
    return directory


def test_a_short_cut_is_survived_and_after_a_long_one_the_same_command_resumes(
    hosts, tiny_corpus, tmp_path, undisturbed
):
    log = tmp_path / "run/metrics.jsonl"
    command = {"overrides": tiny_run(tiny_corpus, tmp_path, "run", *LONG_KEYS), "seconds": TIMEOUT}
    with ThreadPoolExecutor() as pool:
        future = pool.submit(by_slurm, hosts, 2, "pretrain_impatiently", **command)
        wait_for_step(log, 15, future)
        with unplugged(hosts[1]):
            time.sleep(1)  # what had arrived before is used up
            before = log.read_text()
            time.sleep(1)
            assert log.read_text() == before, "the cable was not cut"
        wait_for_step(log, before.count("\n") + 10, future)
        with unplugged(hosts[1]):
            cut = time.monotonic()
            ended = future.result(timeout=60)
            assert time.monotonic() - cut < TIMEOUT + 10
    assert [one.status for one in ended] == [75, 75], ended
    assert all(f"made no progress for train.timeout_seconds = {TIMEOUT}" in one.err for one in ended)
    assert not (tmp_path / "run/summary.json").exists()
    again = by_slurm(hosts, 2, "pretrain_impatiently", **command)
    assert [one.status for one in again] == [0, 0], again
    assert "Resumed from" in again[0].out
    same_bits(tmp_path, "run", undisturbed, "run", LONG)
