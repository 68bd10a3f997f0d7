"""The recipes for clusters train: with commands in place of Slurm's, and as Kubernetes would start their containers."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from forked import end_each, run_processes
from support import ROOT, environment, free_port, losses, tiny_run

pytestmark = pytest.mark.distributed
RECIPES = ROOT / "examples/clusters"
BIN = os.path.dirname(sys.executable)
STEPS = 120
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
# Starts the tasks on this host, passes on a warning as `--signal` lets Slurm do, and ends with the highest status.
SRUN = """#!/bin/bash
trap 'kill -USR1 ${tasks[*]}' USR1
export SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost
echo $$ > "$FAKES/srun.pid"
while [[ $1 == --* ]]; do shift; done
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & tasks+=($!); done
highest=0
for task in ${tasks[*]}; do
    wait $task; status=$?
    while [[ $status -gt 128 ]] && kill -0 $task 2>&-; do wait $task; status=$?; done  # the warning has ended `wait`
    (( status > highest )) && highest=$status
done
exit $highest
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$FAKES/requeued"\n'


@pytest.fixture
def slurm(tmp_path):
    """A function that starts the script as a job, and the folder of the commands in place of Slurm's."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (fakes / name).write_text(text)
        (fakes / name).chmod(0o755)

    def submit(overrides: list[str], restarts: int = 0, **extra: str) -> subprocess.Popen:
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "comera", "SLURM_RESTART_COUNT": str(restarts)}
        batch = {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
        own = {"PATH": f"{fakes}:{os.environ['PATH']}", "FAKES": str(fakes), "PYTHON": sys.executable}
        variables = environment(**own, **job, **batch, **extra) | {"PYTHONPATH": str(ROOT)}
        command = ["bash", RECIPES / "slurm.sh", "--config", ROOT / "tests/defaults.yaml", *overrides]
        # The recipe looks for runs/NAME in its working directory.
        return subprocess.Popen(command, env=variables, cwd=fakes.parent, text=True, **PIPES)

    (fakes.parent / "launch").symlink_to(ROOT / "launch")
    return submit, fakes


def test_slurm_saves_at_the_warning_comes_back_and_finishes(slurm, tiny_corpus, tmp_path):
    submit, fakes = slurm
    overrides = tiny_run(tiny_corpus, tmp_path / "runs", "x", f"train.steps={STEPS}")
    log = tmp_path / "runs/mine/metrics.jsonl"
    job = submit(overrides, NAME="mine")
    while not log.exists() or log.read_text().count("\n") < 5:
        assert job.poll() is None
        time.sleep(0.05)
    os.kill(int((fakes / "srun.pid").read_text()), signal.SIGUSR1)
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 75
    assert "Stopped by signal SIGUSR1" in said
    assert (fakes / "requeued").read_text() == "requeue 7\n"
    assert not (log.parent / "summary.json").exists()

    again = submit(overrides, restarts=1, NAME="mine")
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "Resumed from" in said
    assert len(losses(tmp_path / "runs", "mine")) == STEPS
    assert (fakes / "requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("status", "restarts", "comes_back"), [(2, 0, False), (75, 0, True), (137, 0, True), (1, 0, False), (75, 50, False)]
)
def test_slurm_starts_again_only_where_that_may_help(slurm, status, restarts, comes_back):
    submit, fakes = slurm
    (fakes / "srun").write_text(f"#!/bin/bash\nexit {status}\n")
    job = submit([], restarts)
    job.communicate(timeout=60)
    assert job.returncode == status
    assert (fakes / "requeued").exists() == comes_back


def test_slurm_without_a_summary_is_no_success(slurm):
    submit, fakes = slurm
    (fakes / "srun").write_text("#!/bin/bash\nexit 0\n")
    job = submit([])
    _, said = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "runs/comera/summary.json does not exist" in said
    assert not (fakes / "requeued").exists()


@pytest.mark.parametrize(("overrides", "variables"), [(["run.directory=other"], {}), ([], {"RUNS": "other"})])
def test_slurm_finds_the_summary_in_another_directory_of_runs(slurm, tmp_path, overrides, variables):
    submit, fakes = slurm
    (fakes / "srun").write_text("#!/bin/bash\nexit 0\n")
    (tmp_path / "other/comera").mkdir(parents=True)
    (tmp_path / "other/comera/summary.json").write_text("{}")
    assert submit(overrides, **variables).wait(timeout=60) == 0


@pytest.fixture(scope="module")
def without_a_cluster(tiny_corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("without_a_cluster")
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, directory, "run")])
    return directory


def test_containers_of_the_pytorchjob_train(tiny_corpus, tmp_path, without_a_cluster):
    job, port = yaml.safe_load((RECIPES / "pytorchjob.yaml").read_text())["spec"], free_port()
    containers = [role["template"]["spec"]["containers"][0] for role in job["pytorchReplicaSpecs"].values()]
    pods = []
    for number, container in enumerate(containers):
        # What the operator's controller for PyTorchJobs sets, with one process a pod.
        operator = {"RANK": str(number), "WORLD_SIZE": "2", "PET_NODE_RANK": str(number), "PET_NNODES": "2"}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        operator |= meeting | {f"PET_{name}": value for name, value in meeting.items()} | {"PET_NPROC_PER_NODE": "1"}
        program, script, option, _, _ = container["command"]  # tiny runs change the defaults, not a configuration
        command = [f"{BIN}/{program}", script, option, "tests/defaults.yaml"]
        variables = environment(**operator)
        pods.append(subprocess.Popen([*command, *tiny_run(tiny_corpus, tmp_path, "run")], env=variables, cwd=ROOT))
    assert [pod.wait(timeout=200) for pod in pods] == [0, 0]
    assert losses(tmp_path, "run") == losses(without_a_cluster, "run")


def test_processes_of_the_set_of_jobs_train(tiny_corpus, tmp_path, without_a_cluster):
    (job,) = yaml.safe_load((RECIPES / "jobset.yaml").read_text())["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "launch/pretrain.py", "--config"]
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    assert variables.keys() >= here.keys()
    places = [(variables | here | {"RANK": str(index)}, None) for index in range(2)]
    ended = end_each(places, "pretrain", overrides=tiny_run(tiny_corpus, tmp_path, "run"))
    assert [one.status for one in ended] == [0, 0], ended
    assert losses(tmp_path, "run") == losses(without_a_cluster, "run")
