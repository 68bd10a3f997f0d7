"""The recipes for clusters that cannot run here hold what their programs read."""

import re
import subprocess
from string import Template

import pytest
import yaml
from packaging.requirements import Requirement
from support import ROOT

from comera_dist.config.reader import read_config

RECIPES = ROOT / "examples/clusters"
SCRIPTS = sorted(RECIPES.glob("*.sh"))
HOME = "/home/trainer/comera_dist"  # the working directory of the image


def recipe(name: str) -> dict:
    return yaml.safe_load((RECIPES / name).read_text())


def pods() -> dict[str, dict]:
    """Every pod specification by its recipe and role."""
    replicas = recipe("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]
    found = {f"PyTorchJob {role}": replica["template"]["spec"] for role, replica in replicas.items()}
    for job in recipe("jobset.yaml")["spec"]["replicatedJobs"]:
        found[f"JobSet {job['name']}"] = job["template"]["spec"]["template"]["spec"]
    return found


def instructions() -> list[tuple[str, str]]:
    """Keyword and arguments of each instruction of the Dockerfile."""
    lines = [line for line in (RECIPES / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]


def all_of(keyword: str) -> list[str]:
    return [arguments for name, arguments in instructions() if name == keyword]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_right_shell_and_can_be_started(script):
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""
    assert script.stat().st_mode & 0o111
    assert script.read_text().startswith("#!/bin/bash\n")


def test_every_recipe_is_on_the_page():
    page = (ROOT / "docs/guide/clusters.md").read_text()
    shown = [path.name for path in RECIPES.iterdir() if path.suffix != ".dockerignore"]
    assert [name for name in shown if f"examples/clusters/{name}" not in page] == []


def test_deepspeed_reads_the_hostfile():
    from deepspeed.launcher.runner import fetch_hostfile

    assert fetch_hostfile(str(RECIPES / "hostfile")) == {"host0": 8, "host1": 8}


def test_slurm_is_asked_for_a_warning_and_for_another_start():
    text = (RECIPES / "slurm.sh").read_text()
    asked = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in re.findall("^#SBATCH.*", text, re.M))
    # Without `B:` the signal goes to the processes and not to the script.
    assert asked["signal"] == "USR1@120"
    assert asked["requeue"] == ""
    assert asked["open-mode"] == "append"
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]


def test_the_training_operator_finds_what_it_looks_for():
    job = recipe("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas.keys() == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    assert isinstance(job["spec"]["nprocPerNode"], str)
    for replica in replicas.values():
        assert replica["restartPolicy"] == "OnFailure"
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == job["spec"]["nprocPerNode"]


def test_the_set_of_jobs_restarts_as_a_whole_unless_a_process_ends_with_2():
    jobset = recipe("jobset.yaml")
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobset["spec"]["failurePolicy"]["rules"] == [
        {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    (container,) = job["template"]["spec"]["containers"]
    assert rule == {
        "action": "FailJob",
        "onExitCodes": {"containerName": container["name"], "operator": "In", "values": [2]},
    }
    assert (job["backoffLimit"], job["completionMode"]) == (0, "Indexed")
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy allows no other one


def test_the_set_of_jobs_tells_each_process_its_place():
    jobset = recipe("jobset.yaml")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job, name = replicated["template"]["spec"], jobset["metadata"]["name"]
    (container,) = job["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert variables["WORLD_SIZE"] == str(job["completions"]) == str(job["parallelism"])
    assert variables["MASTER_ADDR"] == f"{name}-{replicated['name']}-0-0.{name}"
    field = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variables["RANK"] == {"fieldRef": {"fieldPath": field}}
    assert variables["MASTER_PORT"].isdigit()


@pytest.mark.parametrize("pod", pods().values(), ids=pods())
def test_pods_train_a_known_configuration_without_rights_and_keep_it(pod):
    (container,) = pod["containers"]
    arguments = container["command"][container["command"].index("--config") + 1 :]
    config = read_config(ROOT / arguments[0], arguments[1:])
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False}
    assert all(isinstance(one.get("value", ""), str) for one in container["env"])  # Kubernetes refuses numbers
    secrets = [one for one in container["env"] if "KEY" in one["name"]]
    assert all("value" not in one for one in secrets)
    kept = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "storage"}
    folders = (config.run_directory.parts[0], str(config.data.corpus).split("/")[0])
    assert kept == {f"{HOME}/{folder}" for folder in folders}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["terminationGracePeriodSeconds"] >= 60


def test_the_image_installs_as_the_makefile_does():
    # `RUN pip` here, `$(BIN)/python -m pip` there.
    pips = [command.partition("pip ")[2] for command in all_of("RUN") if "pip " in command]
    made = re.findall(r"^\t\$\(BIN\)/python -m pip (install .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pips == [made[0], made[1].replace("'.[dev]'", '".$EXTRAS"')]
    assert all("-c constraints.txt" in pip for pip in pips)


def test_the_image_holds_what_it_needs_and_nothing_else():
    copies = [arguments.split() for arguments in all_of("COPY")]
    sources = {source for *some, _ in copies for source in some}
    assert all((ROOT / source).exists() for source in sources)
    ignored = (RECIPES / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    assert not any(keyword == "ADD" for keyword, _ in instructions())
    assert all_of("WORKDIR") == [HOME]
    # Whatever the build reads of the repository was copied before.
    built = (ROOT / "pyproject.toml").read_text()
    for needed in re.findall(r'readme = "(.*)"|license-files = \["(.*)"\]', built):
        assert sources & set(needed)


def test_the_image_runs_as_a_user_with_few_rights():
    order = [keyword for keyword, _ in instructions()]
    assert all_of("USER") == ["1000"]
    assert "RUN" not in order[order.index("USER") :]
    assert not re.search("KEY|TOKEN|SECRET|PASSWORD", "\n".join(all_of("ENV") + all_of("ARG")))


def test_the_image_is_for_gpus_unless_the_build_says_otherwise():
    defaults = dict(line.split("=", 1) for line in all_of("ARG"))
    for_cpus = dict(re.findall(r"--build-arg (\w+)=(\S*)", (RECIPES / "Dockerfile").read_text()))
    assert for_cpus.keys() == defaults.keys()
    project = next(line for line in all_of("RUN") if " -e " in line).split('"')[1]
    for arguments, extras in ((defaults, {"gpu"}), (for_cpus, set())):
        assert Requirement(f"comera_dist{Template(project).substitute(arguments)[1:]}").extras == extras


def test_the_image_has_a_python_that_the_package_supports():
    (image,) = all_of("FROM")
    assert re.fullmatch(r"python:3\.1[0-9]-slim", image)
