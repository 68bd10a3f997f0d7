"""The wheel: one package, with commands that work outside the repository."""

import os
import subprocess
import sys
import zipfile

import pytest
from support import ROOT, environment

# One process for all commands, which share their imports.
ALL_HELP = """
import contextlib, pathlib, runpy, sys
for command in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    sys.argv[:] = [str(command), "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(command), run_name="__main__")
"""
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel in it; the packages that it needs are those of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    return folder


def run(installed, folder, *command: str) -> str:
    """What a command of the wheel prints in `folder`, which is no clone."""
    return python(installed, folder, str(installed / "bin" / command[0]), *command[1:])


def python(installed, folder, *words: str) -> str:
    """What Python prints in `folder`, to which the wheel is installed."""
    words = [sys.executable, *words]
    done = subprocess.run(
        words, cwd=folder, env=environment(PYTHONPATH=str(installed)), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_one_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"comera_dist"}
    inside = "comera_dist/_shipped"
    assert {"comera_dist/py.typed", *(f"{inside}/configs/{name}.yaml" for name in CONFIGS)} <= set(names)
    others = ["judge/suite/_choices", "report/compare/page.html", "report/html/frame.html", "report/html/table.html"]
    assert {f"comera_dist/{other}" for other in others} <= set(names)
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "data_prep").rglob("*.py")]
    assert {f"{inside}/{module}" for module in modules} <= set(names)
    assert f"{inside}/data_prep/report/page.html" in names


def test_every_command_starts(installed, tmp_path):
    said = python(installed, tmp_path, "-c", ALL_HELP, str(installed / "bin"))
    for command in os.listdir(installed / "bin"):
        assert f"usage: {command} " in said


def test_shipped_configurations_are_found_by_name(installed, tmp_path):
    without_data = ("--config", "quickstart", "--vocab-size", "4096")
    assert "parameters" in run(installed, tmp_path, "comera-estimate", *without_data)
    assert "expected loss" in run(installed, tmp_path, "comera-design", *without_data, "--params", "1000000")
    assert "name: codebert\n" in run(installed, tmp_path, "comera-config", "codebert")


def test_a_file_comes_before_a_shipped_configuration_of_its_name(installed, tmp_path):
    (tmp_path / "quickstart").write_text("run: {name: mine}\ntrain: {steps: 5}\n")
    assert "name: mine\n" in run(installed, tmp_path, "comera-config", "quickstart")


def test_data_is_prepared_by_the_wheels_own_scripts(installed, tmp_path):
    (tmp_path / "text.txt").write_text(
        "\n<|endoftext|>\n".join(f"document {i} of {i * i} numbered texts" for i in range(500))
    )
    common = ["--source", "files:*.txt", "--valid-fraction", "0.2", "--output"]
    run(installed, tmp_path, "comera-train-tokenizer", "--vocab-size", "330", *common, "tokenizer.model")
    run(
        installed,
        tmp_path,
        "comera-tokenize-corpus",
        "--tokenizer",
        "tokenizer.model",
        "--workers",
        "2",
        *common,
        "corpus",
    )
    assert "every file is as the manifest says" in run(installed, tmp_path, "comera-verify", "corpus")
    assert "train: all" in run(installed, tmp_path, "comera-report-corpus", "--corpus", "corpus")
    assert "<h2>Copies</h2>" in (tmp_path / "report.html").read_text()
