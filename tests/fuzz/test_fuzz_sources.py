"""Sources of data_prep/ of any content: a data set that can be read, or one sentence and status 2."""

import bz2
import csv
import gzip
import importlib
import io
import json
import lzma
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import strategies as st
from inputs import exit_status, fuzzed
from mutations import ODD, changed_bytes, changed_json
from pyarrow import parquet

from comera_dist.data.answers import AnswerCorpus, PackedAnswers
from comera_dist.data.clicks import ClickCorpus, ClickExamples
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.windows import ValidationWindows
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET
from data_prep import prepare_answers, prepare_clicks, prepare_pairs, tokenize_corpus, train_tokenizer
from data_prep.command import run as run_command

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: zstandard.ZstdCompressor().compress(content),
}
WORDS = ["red", "green", "blue", "é", "7", "0.5", "1e400", "nan", "", " ", '"', "a\tb", "x,y", "\0", "2024-01-01", "-"]
cells = st.sampled_from(WORDS) | st.text(max_size=6) | st.integers(-5, 10**20).map(str)
rows = st.lists(st.lists(cells, min_size=4, max_size=4), max_size=8)
NAMES = ["first", "second", "label", "number"]
# Rows that make a data set if nothing is changed.
USUAL = [[f"the {w} fox {i}", f"{i} dogs", w, str(i)] for i, w in enumerate(["red", "blue", "red", "green"] * 3)]
FEW_ROWS = np.array([0, 1])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer of few pieces."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text("the red fox jumps over 12 dogs\n" * 20)
    source = ["--source", f"files:{folder}/text.txt", "--valid-fraction", "0", "--vocab-size", "320"]
    with redirect_stdout(io.StringIO()):
        train_tokenizer.train([*source, "--output", f"{folder}/tokenizer.model"])
    return folder / "tokenizer.model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sources")


def prepared(command: Callable[[list[str]], None], folder: Path, arguments: list[str]) -> Path:
    """The folder of the data set that a command makes. Raises DataError if it ends with status 2."""
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        exit_status(lambda: run_command(lambda: command([*arguments, "--output", str(output)])), DataError)
    return output


def separated(table: list[list[str]], delimiter: str, quoted: bool) -> bytes:
    if not quoted:
        return "".join(delimiter.join(row) + "\n" for row in table).encode(errors="surrogatepass")
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, escapechar="\\").writerows(table)
    return text.getvalue().encode(errors="surrogatepass")


def in_parquet(table: list[list[str]]) -> bytes:
    columns = [[row[i].encode(errors="replace").decode() for row in table[1:]] for i in range(len(NAMES))]
    file = io.BytesIO()
    parquet.write_table(pa.table(dict(zip(table[0], map(pa.array, columns), strict=True))), file)
    return file.getvalue()


def json_lines(table: list[list[str]]) -> bytes:
    return b"".join(json.dumps(dict(zip(table[0], row, strict=True))).encode() + b"\n" for row in table[1:])


WRITERS: dict[str, Callable[[list[list[str]]], bytes]] = {
    ".csv": lambda table: separated(table, ",", quoted=True),
    ".tsv": lambda table: separated(table, "\t", quoted=False),
    ".jsonl": json_lines,
    ".parquet": in_parquet,
}


@st.composite
def tables(draw: st.DrawFn, suffixes: list[str]) -> tuple[str, bytes]:
    """Name and content of a table: odd rows among usual ones, or usual rows with changed bytes; maybe compressed."""
    suffix, compression = draw(st.sampled_from(suffixes)), draw(st.sampled_from(sorted(COMPRESS)))
    if draw(st.booleans()):
        content = WRITERS[suffix]([NAMES, *draw(rows), *USUAL])
        if suffix == ".jsonl":
            content += draw(changed_json(dict(zip(NAMES, USUAL[0], strict=True)))) + b"\n"
    else:
        content = draw(changed_bytes(WRITERS[suffix]([NAMES, *USUAL])))
    content = COMPRESS[compression](content)
    if compression and draw(st.booleans()):
        content = draw(changed_bytes(content))
    return f"rows{suffix}{compression}", content


def write(folder: Path, name: str, content: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    return folder / name


@fuzzed(
    "source of pairs: csv, tsv, jsonl, parquet",
    330,
    table=tables(list(WRITERS)),
    labelled=st.booleans(),
    grouped=st.booleans(),
)
def test_any_table_of_pairs(folder, tokenizer, table, labelled, grouped):
    path = write(folder / "pairs", *table)
    arguments = ["--source", f"files:{path}", "--tokenizer", str(tokenizer), "--valid-fraction", "0.3"]
    arguments += ["--label-key", "label"] * labelled + ["--group-key", "number"] * grouped
    corpus = PairCorpus(prepared(prepare_pairs.prepare, folder, arguments))
    for split in corpus.splits:
        batch = LabelledPairs(corpus, split, 16).batch(FEW_ROWS % len(corpus.split(split)["labels"]), FEW_ROWS)
        assert (batch.targets_B >= 0).all() == labelled


MESSAGES = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]


@fuzzed("source of answers: chats", 180, chat=changed_json({"messages": MESSAGES}), copies=st.integers(0, 3))
def test_any_chat(folder, tokenizer, chat, copies):
    usual = [{"messages": MESSAGES}, *({"prompt": f"fox {i}", "response": str(i)} for i in range(20))]
    lines = [chat] * copies + [json.dumps(row).encode() for row in usual]
    path = write(folder / "chats", "rows.jsonl", b"\n".join(lines))
    arguments = ["--source", f"files:{path}", "--tokenizer", str(tokenizer), "--valid-fraction", "0.3"]
    corpus = AnswerCorpus(prepared(prepare_answers.prepare, folder, arguments))
    for split in corpus.splits:
        rows = PackedAnswers(corpus, split, 5000)
        batch = rows.batch(FEW_ROWS % len(rows), FEW_ROWS)
        assert (batch.targets_BS != IGNORED_TARGET).any(1).all()


@fuzzed(
    "source of clicks: csv",
    330,
    table=tables([".csv"]),
    label=st.sampled_from(["label=red", "label=red|blue", "number>=3", "number"]),
    options=st.lists(st.sampled_from(["--log", "--strict", "--hash-rows=7", "--min-count=2", "--missing=red,7"])),
    dense=st.sampled_from([[], ["--dense=number"], ["--dense=second.seconds"]]),
)
def test_any_csv_of_clicks(folder, table, label, options, dense):
    path = write(folder / "clicks", *table)
    dense = [] if label.startswith("number") else dense
    categories = ["--categories", "first,number.hour" if not dense else "first,second.weekday"]
    arguments = ["--source", f"csv:{path}", "--label", label, *categories, *options, *dense, "--valid-fraction", "0.3"]
    check_clicks(prepared(prepare_clicks.prepare, folder, arguments))


def check_clicks(output: Path) -> None:
    corpus = ClickCorpus(output)
    for split in corpus.splits:
        rows = len(corpus.split(split)["labels"])
        batch = ClickExamples(corpus, split).batch(np.arange(rows), np.arange(rows))
        assert ((batch.targets_B == 0) | (batch.targets_B == 1)).all()


CRITEO = [
    "\t".join([str(i % 2), *(str(i * k - 2) for k in range(13)), *(f"{i * 7 + k:08x}" for k in range(26))])
    for i in range(16)
]


@fuzzed(
    "source of clicks: criteo",
    180,
    content=changed_bytes("\n".join(CRITEO).encode()),
    row=st.lists(cells, min_size=38, max_size=42).map("\t".join),
    compression=st.sampled_from(sorted(COMPRESS)),
)
def test_any_criteo_log(folder, content, row, compression):
    whole = content + b"\n" + row.encode(errors="surrogatepass") + b"\n"
    path = write(folder / "criteo", f"day_0{compression}", COMPRESS[compression](whole))
    arguments = ["--source", f"criteo:{path}", "--hash-rows", "50", "--valid-fraction", "0.3"]
    check_clicks(prepared(prepare_clicks.prepare, folder, arguments))


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, bytes]:
    """Name and content of a file of text or of a table with a column `text`."""
    suffix = draw(st.sampled_from([".txt", ".py", ".xyz", "", ".jsonl", ".parquet"]))
    texts = [f"the {word} fox {i}\n" for i, word in enumerate(WORDS)]
    if suffix == ".jsonl":
        odd = st.sampled_from(ODD[:20]) | st.text(max_size=9)
        lines = [*texts, *draw(st.lists(odd, max_size=4))]
        content = b"".join(json.dumps({"text": line}).encode() + b"\n" for line in lines)
    elif suffix == ".parquet":
        file = io.BytesIO()
        parquet.write_table(pa.table({"text": texts}), file)
        content = file.getvalue()
    else:
        content = "<|endoftext|>\n".join([*texts, *draw(st.lists(st.text(max_size=9), max_size=3))]).encode()
    if draw(st.booleans()):
        content = draw(changed_bytes(content))
    compression = draw(st.sampled_from(sorted(COMPRESS)))
    return f"text{suffix}{compression}", COMPRESS[compression](content)


separators = st.sampled_from([None, " *", "=+", ".*", "(a+)+$", "", "(", "the.*"])


@fuzzed("source of text: tokenize", 360, document=documents(), separator=separators, strict=st.booleans())
def test_any_source_of_text(folder, tokenizer, document, separator, strict):
    path = write(folder / "text", *document)
    arguments = ["--source", f"files:{path}", "--tokenizer", str(tokenizer), "--valid-fraction", "0.3", "--workers=1"]
    arguments += [] if separator is None else [f"--document-separator={separator}"]
    corpus = Corpus(prepared(tokenize_corpus.tokenize, folder, [*arguments, *["--strict"] * strict]))
    for split in corpus.splits:
        assert len(ValidationWindows(corpus.split(split), 8)) > 0


@fuzzed(
    "source of text: train a tokenizer",
    90,
    document=documents(),
    size=st.sampled_from([1, 256, 300, 10**9, 2**31]) | st.integers(290, 330),
)
def test_any_text_to_train_a_tokenizer_on(folder, document, size):
    path = write(folder / "train", *document)
    arguments = ["--source", f"files:{path}", "--vocab-size", str(size), "--valid-fraction", "0"]
    assert open_tokenizer(prepared(train_tokenizer.train, folder, arguments)).vocab_size == size


@pytest.fixture(scope="module")
def packages(folder):
    """A folder in which Python looks for packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "packages")
        yield folder / "packages"


CODE = "".join(f"def f{i}(x):\n    '''It adds {i} to x.'''\n    y = x + {i}\n    return y\n" for i in range(9))


_OTHER_WORDS = st.text(max_size=20).map(lambda text: CODE.replace("It adds", text).encode(errors="surrogatepass"))


@fuzzed("source of pairs: Python code", 180, code=changed_bytes(CODE.encode()) | _OTHER_WORDS)
def test_any_python_code(folder, packages, tokenizer, code):
    write(packages / "fuzzed_code", "__init__.py", code)
    importlib.invalidate_caches()
    arguments = ["--source", "docstrings:fuzzed_code", "--tokenizer", str(tokenizer), "--valid-fraction", "0.3"]
    assert PairCorpus(prepared(prepare_pairs.prepare, folder, arguments)).labels == []


@fuzzed("tokenizer model: bytes", 180, data=st.data())
def test_any_tokenizer_model(folder, tokenizer, data):
    path = folder / "changed.model"
    path.write_bytes(data.draw(changed_bytes(tokenizer.read_bytes())))
    changed = open_tokenizer(path)
    text = "the red fox\n\té \u2581"
    assert not changed.keeps_text or changed.decode(changed.encode(text)) == text
