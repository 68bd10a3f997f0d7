"""Command lines of any content: the command's work, or a sentence and status 2."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import strategies as st
from inputs import exit_status, fuzzed
from mutations import ODD_NUMBERS, ODD_PATHS
from support import ROOT, TINY, make_clicks, make_corpus

from comera_dist.commands import compare, compress, design, estimate, evaluate, export, generate, predict
from comera_dist.commands import config as config_command
from comera_dist.commands.arguments import read_arguments
from comera_dist.costs import scale
from comera_dist.errors import DataError
from data_prep import (
    prepare_answers,
    prepare_clicks,
    prepare_pairs,
    report_corpus,
    tokenize_corpus,
    train_tokenizer,
    verify,
)
from data_prep.command import run as run_command

NUMBERS = [*map(str, ODD_NUMBERS), "", "x", "1_0", " 7 ", "0x10", "-", "1e3", "\u0663", "9" * 5000]
ODD_WORDS = [
    *ODD_PATHS,
    *NUMBERS,
    "--",
    "--help",
    "-h",
    "--config",
    "--json",
    "--no-such",
    "=",
    "a=",
    "=b",
    "@file",
    "*",
]
# Commands write to the folder that --output names: none but those of the test.
odd_words = (
    st.integers(0, 300).map(str)
    | st.floats(0, 1).map(str)
    | st.sampled_from(ODD_WORDS)
    | st.text(max_size=8).filter(lambda word: not word.startswith("/"))
)


def lines(usual: list[str], options: list[str]) -> st.SearchStrategy[list[str]]:
    """The words `usual`, with some of them dropped, replaced or doubled, and some options with odd values inserted."""
    changes = _changes(options)
    # Most single changes already make a line that is refused.
    return st.builds(_changed, st.just(usual), changes.map(lambda one: [one]) | st.lists(changes, max_size=3))


def _changes(options: list[str]) -> st.SearchStrategy[tuple[str, int, list[str]]]:
    option = st.sampled_from(options)
    given = st.tuples(option, odd_words).map(list) | st.builds("{}={}".format, option, odd_words).map(lambda w: [w])
    inserted = given | option.map(lambda word: [word]) | odd_words.map(lambda word: [word])
    return st.tuples(st.sampled_from(["insert", "insert", "replace", "drop"]), st.integers(0, 20), inserted)


def _changed(usual: list[str], changes: list[tuple[str, int, list[str]]]) -> list[str]:
    words = list(usual)
    for action, place, inserted in changes:
        at = place % (len(words) + 1)
        words[at : at + (action != "insert")] = [] if action == "drop" else inserted
    return words


def called(command: Callable[[], int | None], words: list[str]) -> str:
    """What a command prints. Raises DataError for status 2, which must have come with a sentence."""
    before, out, said = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["command", *words]
    try:
        with redirect_stdout(out), redirect_stderr(said):
            exit_status(command, DataError)
    except DataError:
        assert said.getvalue().strip(), "status 2 without a sentence"
        raise
    finally:
        sys.argv = before
    return out.getvalue()


CONFIGURED = ["--config", str(ROOT / "tests/defaults.yaml"), *TINY]


def test_the_usual_lines_are_accepted():
    assert called(lambda: read_arguments("Trains.") and 0, CONFIGURED) == ""
    assert json.loads(called(estimate.main, [*CONFIGURED, "--vocab-size", "64", "--json"]))["params"] > 0
    assert called(config_command.main, ["quickstart", *TINY[:3]])


@fuzzed("command line: pretrain", 360, words=lines(CONFIGURED, ["--config", "--local_rank", "--local-rank", "train"]))
def test_any_line_of_pretrain(words):
    def parse() -> None:
        config, _ = read_arguments("Trains.")
        assert config.total_steps > 0

    called(parse, words)


@fuzzed("command line: config", 180, words=lines(["quickstart", *TINY[:3]], ["--keys", "quickstart", "train.steps"]))
def test_any_line_of_config(words):
    assert called(config_command.main, words)


ESTIMATE = ["--processes", "--vocab-size", "--layers", "--plans", "--device", "--json", "train.steps", "model.layers"]


@fuzzed("command line: estimate", 240, words=lines([*CONFIGURED, "--vocab-size", "64", "--json"], ESTIMATE))
def test_any_line_of_estimate(words):
    out = called(estimate.main, words)
    if out.startswith("{"):
        assert json.loads(out)["params"] > 0


SCALE = ["--nodes", "--gpus-per-node", "--machine", "h200", "--processes", "--layers", "--vocab-size", "--json"]


@fuzzed("command line: estimate at scale", 120, words=lines([*CONFIGURED, "--vocab-size", "64", "--nodes", "2"], SCALE))
def test_any_line_of_a_prediction(words):
    with pytest.MonkeyPatch.context() as patch:  # each side takes seconds, and depends on its configuration alone
        patch.setattr(scale, "sides_of", lambda *_: [])
        assert called(estimate.main, words)


DESIGN = ["--params", "--flops", "--memory", "--tokens", "--vocab-size", "--json", "data.seq_len", "train.tokens"]


@fuzzed("command line: design", 180, words=lines([*CONFIGURED, "--params", "100000", "--json"], DESIGN))
def test_any_line_of_design(words):
    tasks = []
    with pytest.MonkeyPatch.context() as patch:  # a search takes seconds, and depends on its task alone
        patch.setattr(design, "propose", lambda read, task, fit: tasks.append(task) or [])
        patch.setattr(design, "show_proposals", lambda *_: None)
        called(design.main, words)
    assert all(0 < limit < 1e19 for task in tasks for _, limit in task.budget if limit is not None)


EVALUATE = [
    "--run",
    "--step",
    "--json",
    "--corpus",
    "--split",
    "--max-tokens",
    "--tasks",
    "--tasks-from",
    "--max-items",
    "--shots",
]
PREDICT = ["--run", "--step", "--input", "--output", "--corpus", "--join", "--strict", "scores.csv"]
GENERATE = ["--run", "--step", "--prompt", "--prompt-file", "--tokens", "--temperature", "--top-k", "--top-p", "--seed"]


@pytest.fixture(scope="module")
def no_run(tmp_path_factory):
    """A folder in which commands look for runs and find none, so that they only parse."""
    return tmp_path_factory.mktemp("nothing")


EXPORT = ["--run", "--step", "--to", "hf", "tensors", "--keep-factors", "--json"]
COMPRESS = ["--run", "--step", "--params", "--format", "low_rank", "dense", "--tokens", "--max-tokens", "--json"]
OF_A_RUN = {
    "evaluate": (evaluate, ["--run", "none"], EVALUATE),
    "generate": (generate, ["--run", "none"], [*GENERATE, "--samples"]),
    "predict": (predict, ["--run", "none", "--input", "x.csv"], PREDICT),
    "compare": (compare, ["none"], ["--output", "none", "page.html"]),
    "export": (export, ["--run", "none", "--output", "out"], EXPORT),
    "compress": (compress, ["--run", "none", "--output", "out", "--params", "1000"], COMPRESS),
}


@pytest.mark.parametrize("name", OF_A_RUN)
def test_commands_of_a_run_that_does_not_exist(name, no_run, monkeypatch):
    command, usual, options = OF_A_RUN[name]
    monkeypatch.chdir(no_run)
    name = command.__name__.rpartition(".")[2]

    @fuzzed(f"command line: {name}", 90, words=lines(usual, options))
    def try_lines(words):
        called(command.main, words)

    try_lines()


FRACTION = ["--valid-fraction", "0.4"]
SOURCE = ["--source", "files:text.txt", "--output", "out", *FRACTION]
SPLIT = ["--valid-source", "--valid-fraction", "--seed", "--strict", "--overwrite", "--source", "--output"]
TEXT = [*SPLIT, "--document-separator", "--text-key"]
CLICK = [*SPLIT, "--label", "--columns", "--dense", "--categories", "--join", "--missing", "--log", "--hash-rows"]
CLICK += ["--min-count", "--dictionaries", "--test-source", "--test-fraction"]
PAIR = [*SPLIT, "--first-key", "--second-key", "--label-key", "--group-key", "--exclude-package", "--tokenizer"]
PAIR += ["--vocab-size", "--test-source", "--test-fraction"]
ANSWER = [*SPLIT, "--prompt-key", "--response-key", "--messages-key", "--template", "--max-tokens", "--tokenizer"]
TOKENIZER = ["--tokenizer", "tokenizer.model"]
PREPARATIONS = {
    "tokenize_corpus": (
        tokenize_corpus.tokenize,
        [*SOURCE, *TOKENIZER, "--workers", "1"],
        [*TEXT, "--tokenizer", "--shard-mb"],
    ),
    "train_tokenizer": (
        train_tokenizer.train,
        [*SOURCE, "--vocab-size", "300"],
        [*TEXT, "--vocab-size", "--max-bytes"],
    ),
    "prepare_pairs": (
        prepare_pairs.prepare,
        ["--source", "files:rows.csv", *TOKENIZER, "--output", "out", "--first-key=a", "--second-key=b", *FRACTION],
        PAIR,
    ),
    "prepare_answers": (
        prepare_answers.prepare,
        ["--source", "files:rows.csv", *TOKENIZER, "--output", "out", "--prompt-key=a", "--response-key=b", *FRACTION],
        ANSWER,
    ),
    "prepare_clicks": (
        prepare_clicks.prepare,
        ["--source", "csv:rows.csv", "--label", "c=1", "--categories", "a,b", "--output", "out", *FRACTION],
        CLICK,
    ),
    "verify": (verify.verify, ["corpus"], ["--json", "text.txt", "."]),
    "report_corpus": (
        report_corpus.report,
        ["--corpus", "clicks", "--output", "out"],
        ["--corpus", "--output", "--sample", "--near-duplicates"],
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small text, a table and a tokenizer."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "text.txt").write_text("<|endoftext|>\n".join(f"the red fox {i}\n" * 9 for i in range(9)))
    (folder / "rows.csv").write_text("a,b,c\n" + "".join(f"fox {i},dog {i % 3},{i % 2}\n" for i in range(30)))
    (folder / "tokenizer").mkdir()
    source = ["--source", f"files:{folder}/text.txt", "--vocab-size", "300", "--valid-fraction", "0"]
    with redirect_stdout(io.StringIO()):
        train_tokenizer.train([*source, "--output", str(folder / "tokenizer.model")])
    make_corpus(folder / "corpus")
    make_clicks(folder / "clicks")
    return folder


def made(command: Callable[[list[str]], None], words: list[str]) -> None:
    """Runs a preparation where nothing is prepared yet."""
    shutil.rmtree("out", ignore_errors=True)
    Path("out").unlink(missing_ok=True)
    called(lambda: run_command(lambda: command(words)), [])


@pytest.mark.parametrize("name", PREPARATIONS)
def test_the_usual_line_of_a_preparation_is_accepted(name, place, monkeypatch):
    monkeypatch.chdir(place)
    made(*PREPARATIONS[name][:2])


@pytest.mark.parametrize("name", PREPARATIONS)
def test_any_line_of_a_preparation(name, place, monkeypatch):
    command, usual, options = PREPARATIONS[name]
    monkeypatch.chdir(place)

    @fuzzed(f"command line: {name}", 150, words=lines(usual, options))
    def try_lines(words):
        if not any("hub:" in word or "python-stdlib" in word or "docstrings:" in word for word in words):
            made(command, words)

    try_lines()
