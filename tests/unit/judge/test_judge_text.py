"""The loss on a text file in sliding windows, against a loop that asks the model for one token at a time."""

import math

import pytest
import tokenizer_kinds
import torch
from forked import run_processes, run_program
from local_tasks import document
from support import ROOT

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.errors import ConfigError, DataError
from comera_dist.judge import text as text_module
from comera_dist.judge.text import TextFile, judge_on_text
from comera_dist.judge.windows import sliding_windows
from comera_dist.runtime.processes import alone


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(("".join(map(document, range(90, 96))) + "\r\n\u00e9\u2581 \n\nthe cat").encode())
    return path


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 10, 31])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_every_id_is_judged_once_after_a_long_context(count, stride):
    window, judged = 8, []
    for ids, length in sliding_windows(range(count + 1), window, stride):
        assert ids == list(range(ids[0], ids[-1] + 1))
        assert len(ids) <= window + 1
        judged += ids[-length:]
        before = len(ids) - length
        assert before > window - stride or ids[0] == 0
    assert judged == list(range(1, count + 1))


def slow_nats(model, ids, window, stride):
    """The sum of -log p of each id but the first, after as many ids as its window holds."""
    total = 0.0
    for at in range(1, len(ids)):
        first = 0 if at <= window else stride * -(-(at - window) // stride)
        with torch.no_grad():
            logits_V = model(torch.tensor([ids[first:at]]))[0, -1]
        total -= float(logits_V.double().log_softmax(-1)[ids[at]])
    return total


@pytest.mark.parametrize("stride", [None, 5, 32])
def test_the_loss_is_that_of_a_loop_over_tokens(judged_run, trained, writer, file, stride):
    found = judge_on_text(judged_run, alone(), None, file, stride)
    text = file.read_bytes().decode()
    ids = [writer.tokenizer.eos_id, *writer.tokenizer.encode(text)]
    nats = slow_nats(trained.model, ids, 32, stride or 16)
    assert (found["tokens"], found["bytes"]) == (len(ids) - 1, len(text.encode()))
    assert found["loss"] == pytest.approx(nats / found["tokens"], rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["bytes"], rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / found["tokens"]), rel=1e-5)
    assert (found["window"], found["stride"], found["step"]) == (32, stride or 16, 40)


def test_processes_share_the_windows(judged_run, file, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("the cat")  # a window for the first process alone
    for path in (file, short):
        expected = judge_on_text(judged_run, alone(), None, path, 5)
        one, other = run_processes(2, "judge_text", run=str(judged_run), path=str(path), stride=5)
        assert one == other == {**expected, **{key: pytest.approx(expected[key]) for key in FIGURES}}


FIGURES = ("loss", "bits_per_byte", "perplexity")


def test_a_text_is_read_in_pieces_that_change_no_token(writer, file, monkeypatch):
    whole = [writer.tokenizer.eos_id, *writer.tokenizer.encode(file.read_bytes().decode())]
    monkeypatch.setattr(text_module, "PIECE", 50)
    assert len(list(TextFile(file, writer.tokenizer)._pieces())) > 5
    assert list(TextFile(file, writer.tokenizer)) == whole


def test_a_tokenizer_that_is_not_ours_gets_the_whole_text(tmp_path, monkeypatch):
    tokenizer_kinds.metaspace().save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")
    path = tmp_path / "text.txt"
    path.write_text("for item_3 in\n\n   range(7): adding\n" * 5)
    monkeypatch.setattr(text_module, "PIECE", 1)
    ids = list(TextFile(path, tokenizer))
    assert ids == [tokenizer.eos_id, *tokenizer.encode(path.read_text())]
    pieces = [token for line in path.read_text().splitlines(keepends=True) for token in tokenizer.encode(line)]
    assert ids[1:] != pieces


def test_mistakes_are_sentences(judged_run, file, tmp_path):
    with pytest.raises(ConfigError, match=r"--stride 33 leaves tokens out, as a window has 32; give 32 or less"):
        judge_on_text(judged_run, alone(), None, file, 33)
    for name, content in (("empty", b""), ("binary", b"\xff\xfe"), ("nothing", None)):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        told = "is empty; name a file with text" if name == "empty" else r"cannot be read as UTF-8 text \(.*\); name"
        with pytest.raises(DataError, match=told):
            judge_on_text(judged_run, alone(), None, path, None)


def test_the_command_prints_a_table(judged_run, file):
    done = run_program(["launch/evaluate.py", "--run", str(judged_run), "--text", str(file)], ROOT)
    assert done.status == 0, done.err
    assert done.out.startswith(f"{judged_run} at step 40 on {file}\n")
    for figure in ("stride", "bits per byte", "perplexity"):
        assert figure in done.out
