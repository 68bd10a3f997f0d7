"""Rows to score, text to judge, and pages about data and about runs, of any content: an answer, or one sentence."""

import io
import json
from contextlib import redirect_stdout

import numpy as np
import pytest
import yaml
from hypothesis import strategies as st
from inputs import fuzzed, replaced
from mutations import changed_bytes, changed_json, changed_trees
from test_fuzz_sources import NAMES, USUAL, separated, tables, write

from comera_dist.config.tree import Data
from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.judge.text import TextFile
from comera_dist.report.compare.page import comparison_page
from comera_dist.report.compare.run_files import read_runs
from data_prep import prepare_clicks, prepare_pairs, report_corpus
from data_prep.files.skips import Skips
from data_prep.scoring.opening import open_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared pairs and clicks."""
    folder = tmp_path_factory.mktemp("scoring")
    path = write(folder / "source", "rows.csv", separated([NAMES, *USUAL], ",", quoted=True))
    keys = ["--label-key", "label", "--vocab-size", "304", "--tokenizer", f"{folder}/tokenizer.model"]
    common = ["--valid-fraction", "0.3", "--seed", "2"]
    with redirect_stdout(io.StringIO()):
        prepare_pairs.prepare(["--source", f"files:{path}", *keys, *common, "--output", f"{folder}/pairs"])
        clicks = ["--label", "label=red", "--dense", "number", "--categories", "first,second"]
        prepare_clicks.prepare(["--source", f"csv:{path}", *clicks, *common, "--output", f"{folder}/clicks"])
    return folder


def score(path, folder, kind, strict=False):
    """Reads all rows. Each has a number of its own, and numbers that a model of these data can read."""
    data = Data(corpus=folder / kind, seq_len=16)
    last = 0
    for numbers, inputs in open_rows(path, data, Skips(strict, ())).batches(4):
        assert all(len(array) == len(numbers) <= 4 for array in inputs)
        assert last < numbers[0] <= numbers[-1]
        last = numbers[-1]
        if kind == "pairs":
            assert (
                0
                <= inputs[0].min()
                <= inputs[0].max()
                < json.loads((folder / "pairs/manifest.json").read_text())["vocab_size"]
            )
        else:
            assert np.isfinite(inputs[0]).all()
            assert (inputs[1] < ClickCorpus(folder / "clicks").table_rows).all()


def test_usual_rows_are_scored(folder):
    score(folder / "source/rows.csv", folder, "pairs", strict=True)
    score(folder / "source/rows.csv", folder, "clicks", strict=True)


@fuzzed("rows to score: pairs", 90, table=tables([".csv", ".tsv", ".jsonl", ".parquet"]), strict=st.booleans())
def test_any_pairs_to_score(folder, table, strict):
    score(write(folder / "new", *table), folder, "pairs", strict)


@fuzzed("rows to score: clicks", 90, table=tables([".csv"]), strict=st.booleans())
def test_any_clicks_to_score(folder, table, strict):
    score(write(folder / "new", *table), folder, "clicks", strict)


@fuzzed("rows to score: manifest of the training data", 90, kind=st.sampled_from(["pairs", "clicks"]), data=st.data())
def test_any_manifest_of_the_training_data(folder, kind, data):
    manifest = folder / kind / "manifest.json"
    with replaced({manifest: data.draw(changed_json(json.loads(manifest.read_text())))}):
        list(open_rows(folder / "source/rows.csv", Data(corpus=folder / kind, seq_len=16), Skips(False, ())).batches(4))


@fuzzed("page of prepared data: manifest", 40, kind=st.sampled_from(["pairs", "clicks"]), data=st.data())
def test_any_manifest_of_data_on_a_page(folder, kind, data):
    manifest, page = folder / kind / "manifest.json", folder / "page.html"
    with replaced({manifest: data.draw(changed_json(json.loads(manifest.read_text())))}):
        report_corpus.report(["--corpus", str(folder / kind), "--output", str(page)])
    assert "</html>" in page.read_text()


@fuzzed("text to judge", 150, content=changed_bytes("the red\r\nfox\n\u2028é".encode()) | st.text().map(str.encode))
def test_any_text_to_judge(folder, content):
    path, tokenizer = folder / "judged.txt", open_tokenizer(folder / "tokenizer.model")
    path.write_bytes(content)
    text = TextFile(path, tokenizer)
    first, *ids = text
    assert (first, text.bytes) == (tokenizer.eos_id, len(content))
    assert tokenizer.decode(ids) == content.decode()


RANKS = [
    {"step": 0, "ranks": {"a": [8, 4], "b": []}},
    {"step": 2, "stage": "late", "cut": 3, "ranks": {"a": [5, 4]}, "effective": {"a": [6.0, 3.0]}},
]
METRICS = [
    {
        "step": s,
        "tokens": 9 * s,
        "loss": 5.0 / s,
        "tokens_per_second": 7.0,
        "params": 5,
        "step_ms": 9.0,
        "val_loss": 2.0,
    }
    for s in (1, 2)
]
NORMS = [{"step": s, "update_ratio": {"model.a": 0.01, "lm_head": None}} for s in (1, 2)]
FILES = {
    "config.yaml": yaml.safe_dump({"model": {"kind": "decoder", "layers": 2}, "train": {"steps": 4}}).encode(),
    "run.json": json.dumps({"world_size": 1, "git": "abc", "starts": [{"step": 0}]}).encode(),
    "summary.json": json.dumps(
        {"val_loss": 2.0, "params": 5, "dense_params": 9, "compression": 1.8, "tokens": 18, "wall_seconds": 3.0}
    ).encode(),
    "metrics.jsonl": b"".join(json.dumps(record).encode() + b"\n" for record in METRICS),
    "ranks.jsonl": b"".join(json.dumps(record).encode() + b"\n" for record in RANKS),
    "norms.jsonl": b"".join(json.dumps(record).encode() + b"\n" for record in NORMS),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("pages") / "run"
    run.mkdir()
    for name, content in FILES.items():
        (run / name).write_bytes(content)
    return run


@st.composite
def changed_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file of a run with changed bytes, or with a changed tree or last record."""
    name = draw(st.sampled_from(sorted(FILES)))
    if draw(st.booleans()):
        return name, draw(changed_bytes(FILES[name]))
    if name == "config.yaml":
        return name, yaml.safe_dump(draw(changed_trees(yaml.safe_load(FILES[name])))).encode(errors="surrogatepass")
    *others, last = FILES[name].splitlines(keepends=True)
    return name, b"".join(others) + draw(changed_json(json.loads(last))) + b"\n"


@fuzzed("page of a run: its files", 80, file=changed_files())
def test_any_files_of_a_page(run, file):
    with replaced({run / file[0]: file[1]}):
        assert "</html>" in comparison_page(read_runs([run]))
