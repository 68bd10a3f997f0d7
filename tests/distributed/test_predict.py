"""Scores of rows: the same numbers as the prepared data, and the loss that launch/evaluate.py prints."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from forked import run_processes, run_program
from support import ROOT, WORKLOADS, make_clicks, tiny_run, with_manifest

from comera_dist.commands.predict import _score, main
from comera_dist.config.tree import Data
from comera_dist.data.clicks import ClickCorpus, ClickExamples
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.errors import DataError
from comera_dist.run.evaluate import evaluate_run
from comera_dist.runtime.processes import alone
from data_prep import prepare_clicks, prepare_pairs
from data_prep.clicks.generated import CATEGORIES, DENSE
from data_prep.files.skips import Skips
from data_prep.scoring.clicks import ClickRows
from data_prep.scoring.opening import open_rows
from data_prep.scoring.pairs import PairRows

pytestmark = pytest.mark.distributed
WORDS = ["red", "green", "blue", "é", "if x:\n  y", "4711"]


def write_pairs(path, count, seed, labels=True):
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        first, second = (" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(2))
        rows.append({"a": f"{first} {number}", "b": second, "truth": ["no", "yes", "so"][number % 3]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def write_clicks(path, count, seed, with_label=True):
    random = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "age", "city", "when", *["clicked"] * with_label])
        rows = []
        for number in range(count):
            age, city = random.integers(1, 90), random.choice(["Bonn", "Köln", "a,b"])
            when = f"2024-0{number % 9 + 1}-1{number % 7}T0{number % 10}:30"
            rows.append([number, "" if number % 11 == 0 else age, city, when, int(random.random() < 0.4)])
            writer.writerow(rows[-1][: 4 + with_label])
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_corpus):
    """Sources, prepared data and a short run of each kind of model."""
    folder = tmp_path_factory.mktemp("predict")
    write_pairs(folder / "train.jsonl", 120, seed=1), write_pairs(folder / "valid.jsonl", 50, seed=2)
    write_clicks(folder / "train.csv", 300, seed=3), write_clicks(folder / "valid.csv", 70, seed=4)
    keys = ["--first-key", "premise,a", "--second-key", "b", "--label-key", "truth", "--vocab-size", "320"]
    pairs = ["--source", f"files:{folder}/train.jsonl", "--valid-source", f"files:{folder}/valid.jsonl", *keys]
    prepare_pairs.prepare([*pairs, "--tokenizer", f"{folder}/tokenizer.model", "--output", f"{folder}/pairs"])
    clicks = ["--source", f"csv:{folder}/train.csv", "--valid-source", f"csv:{folder}/valid.csv", "--label", "clicked"]
    clicks += ["--dense", "age,when.seconds", "--categories", "city,when.weekday,when.hour"]
    prepare_clicks.prepare([*clicks, "--output", f"{folder}/clicks"])
    generated = ["--source", "generated:400", "--hash-rows", "60,7,48", "--output", f"{folder}/generated"]
    prepare_clicks.prepare(generated)
    unknown = make_clicks(folder / "unknown")

    def run(kind, corpus, name):
        place = [f"data.corpus={corpus}", f"run.directory={folder}", f"run.name={name}"]
        return [*place, *WORKLOADS[kind], "train.steps=3", "optim.lr=0.02"]

    runs = [run("classifier", folder / "pairs", "classifier"), run("masked_lm", folder / "pairs", "masked_lm")]
    runs += [run("dlrm", folder / "clicks", "dlrm"), run("dlrm", folder / "generated", "made_up")]
    runs += [run("dlrm", unknown, "not_described"), tiny_run(tiny_corpus, folder, "decoder", "train.steps=2")]
    run_processes(1, "train_runs", runs=runs)
    return folder


def predict(folder, name, *arguments):
    """What the command prints for one run, as records."""
    done = run_program(["launch/predict.py", "--run", str(folder / name), *map(str, arguments)], ROOT)
    assert done.status == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()], done.err


def test_the_classes_of_pairs_have_the_loss_of_the_evaluation(folder):
    scores, said = predict(folder, "classifier", "--input", folder / "valid.jsonl")
    truths = [json.loads(line)["truth"] for line in (folder / "valid.jsonl").read_text().splitlines()]
    assert [score["row"] for score in scores] == list(range(1, 51))
    loss = -np.mean([math.log(score["probabilities"][truth]) for score, truth in zip(scores, truths, strict=True)])
    correct = np.mean([score["label"] == truth for score, truth in zip(scores, truths, strict=True)])
    figures = evaluate_run(folder / "classifier", alone(), None, None, "valid", None)
    assert loss == pytest.approx(figures["loss"], rel=1e-5)
    assert correct == pytest.approx(figures["accuracy"])
    assert all(sum(score["probabilities"].values()) == pytest.approx(1) for score in scores)
    assert "50 rows of" in said


def test_clicks_have_the_loss_of_the_evaluation_in_a_csv_file(folder):
    output = folder / "scores.csv"
    predict(folder, "dlrm", "--input", folder / "valid.csv", "--output", output)
    with output.open(newline="") as file:
        scores = list(csv.DictReader(file))
    with (folder / "valid.csv").open(newline="") as file:
        clicked = [row["clicked"] == "1" for row in csv.DictReader(file)]
    assert [int(score["row"]) for score in scores] == list(range(2, 72)), "a header is row 1"
    odds = [float(score["probability"]) for score in scores]
    loss = -np.mean([math.log(p if click else 1 - p) for p, click in zip(odds, clicked, strict=True)])
    figures = evaluate_run(folder / "dlrm", alone(), None, None, "valid", None)
    assert loss == pytest.approx(figures["loss"], rel=1e-5)
    assert {path.name for path in folder.glob(".*")} == set(), "no unfinished file is left"


def gathered(rows, size):
    """The numbers of all rows of a file, and the arrays of all batches together."""
    batches = list(rows.batches(size))
    assert all(len(batch.numbers) <= size for batch in batches)
    arrays = zip(*(batch.inputs for batch in batches), strict=True)
    return [n for batch in batches for n in batch.numbers], [np.concatenate(parts) for parts in arrays]


def same(found, batch):
    return all(np.array_equal(one, other.numpy()) for one, other in zip(found, batch[:-1], strict=True))


def test_a_pair_becomes_the_numbers_of_the_prepared_data(folder):
    for seq_len in (9, 40):  # with and without cut texts
        rows = PairRows(folder / "valid.jsonl", Data(corpus=folder / "pairs", seq_len=seq_len), Skips(True, ()))
        every = np.arange(50)
        batch = LabelledPairs(PairCorpus(folder / "pairs"), "valid", seq_len).batch(every, every)
        assert same(gathered(rows, 7)[1], batch)


@pytest.mark.parametrize("with_label", [True, False])
def test_a_click_becomes_the_numbers_of_the_prepared_data(folder, tmp_path, with_label):
    write_clicks(tmp_path / "new.csv", 70, seed=4, with_label=with_label)
    rows = ClickRows(tmp_path / "new.csv", Data(corpus=folder / "clicks"), Skips(True, ()), block_bytes=1 << 10)
    every = np.arange(70)
    assert same(gathered(rows, 16)[1], ClickExamples(ClickCorpus(folder / "clicks"), "valid").batch(every, every))


def joined_data(folder):
    """Clicks with the columns of films.csv, prepared from train.csv and seen.csv."""
    (folder / "films.csv").write_text("film,kind\n" + "".join(f"{n},{'abc'[n % 3]}\n" for n in range(9)))
    for name in ("seen.csv", "train.csv"):
        (folder / name).write_text("film,liked\n" + "".join(f"{n % 9},{n % 2}\n" for n in range(40)))
    arguments = ["--label", "liked", "--categories", "film,kind", "--join", f"{folder}/films.csv:film"]
    both = [f"--source=csv:{folder}/train.csv", f"--valid-source=csv:{folder}/seen.csv"]
    prepare_clicks.prepare([*both, *arguments, "--output", f"{folder}/data"])
    return Data(corpus=folder / "data")


@pytest.mark.parametrize(("films", "said"), [("3,4", ""), ("3,77", "1 of 2"), ("66,77", "2 of 2")])
def test_rows_that_find_no_joined_key_are_scored_and_counted(tmp_path, monkeypatch, capsys, films, said):
    config = SimpleNamespace(data=joined_data(tmp_path))
    capsys.readouterr()
    (tmp_path / "new.csv").write_text("film\n" + "".join(f"{film}\n" for film in films.split(",")))
    arguments = SimpleNamespace(input=tmp_path / "new.csv", join=tmp_path / "films.csv", strict=False, output=Path("-"))
    monkeypatch.setattr("comera_dist.run.predict.predict", lambda trained, rows: map(rows.record, *gathered_rows(rows)))
    _score(SimpleNamespace(config=config), arguments)
    found = capsys.readouterr()
    assert found.out.count("\n") == 2
    lines = [line for line in found.err.splitlines() if "--join" in line]
    assert lines == [f"--join {tmp_path}/films.csv:film: {said} rows found no key"] * bool(said)


def gathered_rows(rows):
    """The numbers of all rows of a file, and a score for each."""
    numbers, _ = gathered(rows, 16)
    return numbers, [[0.5]] * len(numbers)


def test_a_joined_table_is_named_again(tmp_path):
    """A manifest may come from anybody, so it must not name files that are read."""
    data, every = joined_data(tmp_path), np.arange(40)
    rows = open_rows(tmp_path / "seen.csv", data, Skips(True, ()), tmp_path / "films.csv")
    assert same(gathered(rows, 16)[1], ClickExamples(ClickCorpus(tmp_path / "data"), "valid").batch(every, every))
    with pytest.raises(DataError, match=r"the training data joined '.*films.csv:film'; name that file with --join"):
        open_rows(tmp_path / "seen.csv", data, Skips(True, ()))


def test_a_table_is_joined_only_where_the_training_data_were(folder):
    for kind, source, said in (
        ("clicks", "valid.csv", "joined no table; remove"),
        ("pairs", "valid.jsonl", "is for click"),
    ):
        with pytest.raises(DataError, match=said):
            open_rows(folder / source, Data(corpus=folder / kind), Skips(True, ()), folder / "valid.csv")


def test_another_tokenizer_is_refused(folder, tmp_path):
    copy = with_manifest(folder / "pairs", tmp_path / "pairs", tokenizer=(folder / "tokenizer.model").read_bytes())
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["tokenizer"]["sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="did not make these data; copy the data set again"):
        open_rows(folder / "valid.jsonl", Data(corpus=copy), Skips(True, ()))


@pytest.mark.parametrize("with_label", [True, False])
def test_a_row_of_criteo_becomes_the_numbers_of_the_prepared_data(tmp_path, with_label):
    random = np.random.default_rng(5)
    lines = [
        [
            str(n % 2),
            *(str(random.integers(0, 99)) for _ in DENSE),
            *(f"{random.integers(2**32):08x}" for _ in CATEGORIES),
        ]
        for n in range(40)
    ]
    for name in ("train.tsv", "test.tsv"):
        (tmp_path / name).write_text("".join("\t".join(line) + "\n" for line in lines))
    (tmp_path / "new.tsv").write_text("".join("\t".join(line[1 - with_label :]) + "\n" for line in lines))
    source = ["--test-source", f"criteo:{tmp_path}/test.tsv", "--hash-rows", "50", "--output", f"{tmp_path}/data"]
    prepare_clicks.prepare(["--source", f"criteo:{tmp_path}/train.tsv", *source])
    rows = ClickRows(tmp_path / "new.tsv", Data(corpus=tmp_path / "data"), Skips(True, ()))
    every = np.arange(40)
    assert same(gathered(rows, 64)[1], ClickExamples(ClickCorpus(tmp_path / "data"), "test").batch(every, every))


def test_rows_that_cannot_be_used_are_counted_and_the_others_keep_their_numbers(folder, tmp_path, capsys):
    (tmp_path / "new.jsonl").write_text(
        '{"a": "x", "b": "y"}\nbroken\n{"a": "x"}\n\n{"premise": ["x", "y"], "b": "z"}\n'
    )
    skips = Skips(False, ())
    numbers, _ = gathered(open_rows(tmp_path / "new.jsonl", Data(corpus=folder / "pairs"), skips), 8)
    assert numbers == [1, 5]
    assert skips.counts == {"broken_line": 1, "missing_column": 1}
    lines = (folder / "valid.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join([*lines[:2], "1,2", lines[2].replace("2024", "soon"), lines[3]]))
    skips = Skips(False, ())
    numbers, _ = gathered(open_rows(tmp_path / "new.csv", Data(corpus=folder / "clicks"), skips), 8)
    assert numbers == [2, 5]
    assert skips.counts == {"wrong_fields": 1, "not_a_number": 1}


def refused(monkeypatch, capsys, folder, name, source, *more):
    monkeypatch.setattr(
        "sys.argv", ["predict.py", "--run", str(folder / name), "--input", str(source), *map(str, more)]
    )
    assert main() == 2
    return capsys.readouterr().err


MISTAKES = {
    "nothing.jsonl is not a file": ("classifier", "nothing.jsonl", ""),
    "empty.jsonl is empty": ("classifier", "empty.jsonl", ""),
    "broken.jsonl can be scored; mend its rows": ("classifier", "broken.jsonl", "\n{}\n"),
    "other.csv has no column b, only a, c; give the texts": ("classifier", "other.csv", "a,c\nx,y\n"),
    "rows.txt is of no known format": ("classifier", "rows.txt", "x"),
    "rows.csv has no column when.weekday, only age, city": ("dlrm", "rows.csv", "age,city,when.seconds\n1,Bonn,3\n"),
    "was generated, so no file has rows like its own": ("made_up", "rows.csv", "x\n"),
    "does not say of which columns its rows were made": ("not_described", "rows.csv", "x\n"),
    "gives rows no probabilities; continue texts with launch/generate.py": ("decoder", "rows.csv", "x\n"),
    "gives rows no probabilities; measure it with launch/evaluate.py": ("masked_lm", "rows.csv", "x\n"),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_mistakes_end_in_one_sentence(folder, tmp_path, monkeypatch, capsys, sentence):
    name, file, content = MISTAKES[sentence]
    if file != "nothing.jsonl":
        (tmp_path / file).write_text(content)
    said = refused(monkeypatch, capsys, folder, name, tmp_path / file, "--output", tmp_path / "out.csv")
    assert sentence in said
    assert not list(tmp_path.glob("*out.csv*"))


def test_further_mistakes(folder, monkeypatch, capsys):
    valid = folder / "valid.jsonl"
    assert "neither .jsonl nor .csv" in refused(monkeypatch, capsys, folder, "classifier", valid, "--output", "x.tsv")
    assert "cannot be read or written" in refused(
        monkeypatch, capsys, folder, "classifier", valid, "--output", folder / "missing" / "x.csv"
    )
    before = valid.read_bytes()
    assert "valid.jsonl is the file of --input, which it would replace" in refused(
        monkeypatch, capsys, folder, "classifier", valid, "--output", folder / "clicks" / ".." / "valid.jsonl"
    )
    assert valid.read_bytes() == before
    assert "holds clicks, and this model reads pairs" in refused(
        monkeypatch, capsys, folder, "classifier", valid, "--corpus", folder / "clicks"
    )
