"""Every command of the README and of the documentation runs, as written, with a few steps instead of many."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from forked import Ended, run_program
from support import ROOT, environment

SHORT = ["train.steps=2", "schedule.warmup_steps=0", "eval.max_tokens=2000", "wandb.mode=disabled"]
# In the order of reading: commands of a page may need what an earlier page has made.
GUIDE = ("start", "text", "configure", "workloads", "ranks", "trained", "export", "runs", "clusters", "hour")
PAGES = [
    ROOT / "README.md",
    *(ROOT / f"docs/guide/{name}.md" for name in GUIDE),
    *(
        ROOT / name
        for name in (
            "docs/measured.md",
            "docs/quality.md",
            "docs/recipe.md",
            "docs/arena.md",
            "docs/scale.md",
            "docs/reliability.md",
            "docs/features.md",
            "docs/design.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "CHANGELOG.md",
        )
    ),
]


def blocks(language: str) -> list[str]:
    """The texts of all blocks of code in a language, page by page."""
    return [block for page in PAGES for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)]


COMMANDS = list(dict.fromkeys(line for block in blocks("bash") for line in block.splitlines()))
PROGRAM = r"(python|(deepspeed --num_accelerators|torchrun --standalone --nproc_per_node) (?P<count>\d+)) (?P<words>.*)"
SET_UP = ["make quickstart", "make test", "make install"]  # tested for themselves


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the tracked and new files, with this checkout's virtual environment."""
    folder = tmp_path_factory.mktemp("clone") / "comera_dist"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():  # a link to a virtual environment is not ignored by .gitignore
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "ready").touch()  # the environment is the one that this test runs in
    return folder


def run(command: str, folder) -> Ended:
    """The end of a command. A program begins with its imports made, on as many processes as its launcher would start.

    The launchers have tests of their own, and `make quickstart` begins with one.
    """
    # The interpreter of this test, its packages, and the copy's own code before an installed one.
    binaries = os.path.dirname(sys.executable)
    variables = {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    if found := re.fullmatch(PROGRAM, command):
        count = found["count"] and int(found["count"])
        return run_program(shlex.split(found["words"]), folder, count, **variables)
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=240
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def last_of_recipe(command: str, folder) -> str:
    """The last command that make would run. Its program is on the path; test_make_quickstart has it begin by make."""
    listed = run(command.replace("make", "make -n --no-print-directory", 1), folder).out
    return listed.splitlines()[-1].removeprefix(f"{sys.prefix}/bin/").strip()


def test_the_two_commands_come_first():
    assert COMMANDS[:2] == ["make quickstart", "make test"]


def test_every_page_is_read():
    assert set(PAGES) == {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")}


def test_make_quickstart(clone):
    # What remains is corpus, tokenizer, training, summary.
    done = run(f"make quickstart VENV={sys.prefix} READY=ready OVERRIDES='{' '.join(SHORT)}'", clone)
    assert done.status == 0, done.out + done.err
    assert "is fastest" in done.out, "the doctor comes first"
    assert "smaller" in done.out
    assert "plots/loss.png" in done.out


def test_make_test_runs_the_linter_and_pytest(clone):
    done = run("make -n test READY=ready", clone)
    assert "ruff check" in done.out
    assert "pytest" in done.out


def test_make_install_installs_the_pinned_packages(clone):
    assert "install -q -c constraints.txt -e '.[dev]'" in run("make -n install", clone).out


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in SET_UP])
def test_every_other_command(clone, command):
    assert (clone / "corpora/python-stdlib/manifest.json").exists(), "test_make_quickstart makes the corpus"
    # In two steps a late stage has to begin and end at once.
    short = [*SHORT, "ranks.sync_every=1"] if "quickstart_ranks" in command else SHORT
    shortened = f"{command} {' '.join(short)}" if "pretrain.py" in command else command
    if "--tasks" in command:
        shortened = f"{command} --max-items 5"
    elif "--text" not in command and re.search(r"evaluate|compress|import_hf", command):
        shortened = f"{command} --max-tokens 2000{'' if 'evaluate' in command else ' --tokens 2000'}"
    if command.startswith("make quickstart"):
        shortened = last_of_recipe(f"{command} VENV={sys.prefix} READY=ready OVERRIDES='{' '.join(short)}'", clone)
    done = run(shortened, clone)
    assert done.status == 0, f"{shortened}\n{done.out}\n{done.err}"


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_snippets_print_what_their_comments_say(clone, number):
    snippet = blocks("python")[number]
    (clone / "snippet.py").write_text(snippet)
    done = run("python snippet.py", clone)
    assert done.status == 0, done.err
    said = re.findall(r"^print\(.*# ([\w.]+)", snippet, re.MULTILINE)
    assert [line.split()[0] for line in done.out.splitlines()] == said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    for path in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not path.startswith("http"):
            assert (page.parent / path).exists(), path
    for path in re.findall(r"`((?:comera_dist|configs|benchmarks|examples|launch|data_prep|tests)/[\w./]*)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path
