"""Each check of the doctor finds its fault, and names a remedy for it."""

import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest

from comera_dist.commands import doctor
from comera_dist.commands.doctor import of_hosts, wandb
from comera_dist.doctor import disk as disk_check
from comera_dist.doctor import machine as machine_check
from comera_dist.doctor import network as network_check
from comera_dist.doctor.disk import disk
from comera_dist.doctor.finding import Finding, Grade
from comera_dist.doctor.machine import gpus, machine, shared_memory
from comera_dist.doctor.network import network
from comera_dist.doctor.software import packages, software
from comera_dist.runtime.processes import Processes, alone
from comera_dist.storage import files

Usage = namedtuple("Usage", "total used free")


def grades(findings) -> dict[str, Grade]:
    found = list(findings)
    assert all(one.remedy for one in found if one.grade is not Grade.FINE)
    return {one.check: one.grade for one in found}


def test_this_machine_can_run():
    assert set(grades(software()).values()) == {Grade.FINE}
    assert Grade.BROKEN not in grades(machine()).values()


def test_a_checkout_that_is_not_installed_is_doubtful(monkeypatch):
    monkeypatch.setattr("comera_dist.doctor.software.PACKAGE", "no-such-package")
    assert grades(software()) == {"Python": Grade.FINE, "no-such-package": Grade.DOUBTFUL}


@pytest.mark.parametrize("requirement", ["torch==1.0", "no-such-package>=2"])
def test_packages_that_do_not_fit_are_broken(requirement):
    assert list(grades(packages([requirement, "torch>=2"])).values()) == [Grade.BROKEN]


def test_a_package_of_an_extra_may_be_missing():
    assert grades(packages(['no-such-package; extra == "dev"', "torch>=2"])) == {"packages": Grade.FINE}


def test_a_gpu_that_torch_does_not_see_is_broken(monkeypatch):
    monkeypatch.setattr(machine_check.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine_check.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert grades(gpus()) == {"GPU": Grade.BROKEN}


def test_little_shared_memory_is_doubtful(monkeypatch, tmp_path):
    assert shared_memory(tmp_path / "missing").grade is Grade.DOUBTFUL
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 << 20, 0, 64 << 20))
    assert shared_memory(tmp_path).grade is Grade.DOUBTFUL


def test_a_port_in_use_is_doubtful(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(network_check, "USUAL_PORT", other.getsockname()[1])
        assert grades(network(alone()))["port"] is Grade.DOUBTFUL
    assert grades(network(alone()))["port"] is Grade.FINE


def test_a_disk_that_works(tmp_path):
    folder = tmp_path / "runs"
    assert set(grades(disk(folder, alone())).values()) == {Grade.FINE}
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").touch()
    assert grades(disk(tmp_path / "file/runs", alone())) == {"disk": Grade.BROKEN}


def test_a_disk_without_room_is_doubtful(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 1 << 40, 1 << 20))
    assert grades(disk(tmp_path, alone()))["disk, room"] is Grade.DOUBTFUL


def test_a_file_system_without_locks_is_doubtful(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_check.RunLock, "acquire", lambda lock: None)
    assert grades(disk(tmp_path, alone()))["disk, lock"] is Grade.DOUBTFUL


class TwoHosts:
    """Processes on this host and on another one, on which everything has failed."""

    def gather(self, thing):
        _, findings = thing
        return [thing, ("other", [Finding(one.check, "bad", Grade.BROKEN, "mend") for one in findings])]


@pytest.mark.parametrize("differs", ["Python", "numpy", "safetensors", "code of comera_dist"])
def test_hosts_with_other_packages_or_code_are_broken(monkeypatch, differs):
    monkeypatch.setattr(Processes, "gather", lambda self, own: [own, own, own | {differs: "other"}])
    found = network_check._versions(alone())
    assert found.grade is Grade.BROKEN
    assert found.found.startswith(f"{differs}: ")
    assert found.found.endswith(", other")
    monkeypatch.setattr(Processes, "gather", lambda self, own: [own, own])
    assert network_check._versions(alone()).grade is Grade.FINE


def test_findings_of_other_hosts_are_told():
    found = of_hosts([Finding("memory", "1 GiB")], TwoHosts())
    assert grades(found) == {f"{socket.gethostname()}: memory": Grade.FINE, "other: memory": Grade.BROKEN}
    assert of_hosts([Finding("memory", "1 GiB")], alone()) == [Finding("memory", "1 GiB")]


def test_a_disk_that_others_do_not_see_is_broken(monkeypatch, tmp_path):
    processes = alone()
    monkeypatch.setattr(files, "SEEN_SECONDS", 0.1)
    monkeypatch.setattr(type(processes), "gather", lambda self, sees: [sees, False])
    assert grades(disk(Path(tmp_path), processes))["disk, shared"] is Grade.BROKEN


def test_disk_and_wandb_are_those_of_the_configuration(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "precision", lambda *_: [])
    argv = ["doctor.py", "--config", "quickstart", f"run.directory={tmp_path}/file/runs", "wandb.mode=disabled"]
    monkeypatch.setattr("sys.argv", argv)
    assert doctor.main() == 2
    assert "disabled, runs are neither sent nor recorded" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*argv, "--directory", str(tmp_path)])
    assert doctor.main() == 0


@pytest.mark.parametrize(
    ("configured", "variables", "found"),
    [
        ("auto", {}, "no key, runs are recorded offline"),
        ("online", {}, "no key, runs are recorded offline"),
        ("auto", {"WANDB_API_KEY": "key"}, "a key is here, runs are sent"),
        ("auto", {"WANDB_API_KEY": "key", "WANDB_MODE": "offline"}, "runs are recorded offline, as was chosen"),
        ("offline", {"WANDB_API_KEY": "key"}, "runs are recorded offline, as was chosen"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled, runs are neither sent nor recorded for it"),
    ],
)
def test_wandb_is_found_as_a_run_would_use_it(monkeypatch, tmp_path, configured, variables, found):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wandb(configured).found == found
    assert grades([wandb(configured)]) == {"W&B": Grade.DOUBTFUL if "no key" in found else Grade.FINE}
