"""Every command of the README runs, as written, with a few steps instead of many."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

SHORT = ["train.steps=2", "schedule.warmup_steps=0", "eval.max_tokens=2000", "wandb.mode=disabled"]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the tracked and new files, with this checkout's virtual environment."""
    folder = tmp_path_factory.mktemp("clone") / "comera_dist"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run(command: str, folder) -> subprocess.CompletedProcess:
    # The interpreter of this test, its packages, and the copy's own code before an installed one.
    binaries = os.path.dirname(sys.executable)
    extra = {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment(**extra), capture_output=True, text=True, timeout=240
    )


def test_the_two_commands_come_first():
    assert COMMANDS[:2] == ["make quickstart", "make test"]


def test_make_quickstart(clone):
    # The environment is the one that this test runs in; what remains is corpus, tokenizer, training, summary.
    (clone / "ready").touch()
    quickstart = f"make quickstart VENV={sys.prefix} READY=ready OVERRIDES='{' '.join(SHORT)}'"
    done = run(quickstart, clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "smaller" in done.stdout
    assert "plots/loss.png" in done.stdout
    assert "is already finished" in run(quickstart, clone).stdout


def test_make_test_runs_the_linter_and_pytest(clone):
    done = run("make -n test READY=ready", clone)
    assert "ruff check" in done.stdout
    assert "pytest" in done.stdout


def test_every_other_command(clone):
    assert (clone / "corpora/python-stdlib/manifest.json").exists(), "test_make_quickstart makes the corpus"
    for command in COMMANDS[2:]:
        # In two steps a late stage has to begin and end at once.
        short = [*SHORT, "ranks.sync_every=1"] if "quickstart_ranks" in command else SHORT
        shortened = f"{command} {' '.join(short)}" if "pretrain.py" in command else command
        if command.startswith("make"):
            shortened = f"{command} VENV={sys.prefix} READY=ready OVERRIDES='{' '.join(short)}'"
        done = run(shortened, clone)
        assert done.returncode == 0, f"{shortened}\n{done.stdout}\n{done.stderr}"


def test_files_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"\]\(([^)]+)\)", text) + re.findall(
        r"`((?:comera_dist|configs|benchmarks)/[\w./]*)`", text
    ):
        if not path.startswith("http"):
            assert (ROOT / path).exists(), path
