"""The page about prepared data: well formed, in one piece, with figures known by hand, for each kind of data."""

import json
import math
import random
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from support import make_clicks, with_manifest

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.shards import Corpus
from comera_dist.errors import DataError
from data_prep import prepare_pairs, tokenize_corpus, train_tokenizer
from data_prep.report.click_sections import log_loss
from data_prep.report_corpus import main, report

NASTY = "</pre><script>alert(1)</script>"


def written(rng, words):
    return " ".join(f"word{rng.randrange(60)}" for _ in range(words))


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A corpus of forty documents, eight of them copies, with two validation documents, one of them a copy; pairs."""
    folder, rng = tmp_path_factory.mktemp("material"), random.Random(0)
    originals = [written(rng, rng.randrange(80, 200)) + f" {NASTY}" * (number == 3) for number in range(32)]
    exact, near = originals[:5], [text.replace(" ", "\n", 3) + " end" for text in originals[5:8]]
    held_out = [originals[9] + " end", "Straße und Häuser: " + written(rng, 90)]
    for name, texts in (("docs", [*originals, *exact, *near]), ("valid", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "{\n")
    rows = [
        {"first": written(rng, 5), "second": written(rng, 9), "label": "yes no no"[3 * (n % 3) :][:3].strip()}
        for n in range(200)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, model = f"files:{folder}/docs.jsonl", f"{folder}/tokenizer.model"
    train_tokenizer.train(["--source", source, "--vocab-size", "320", "--output", model])
    common = ["--tokenizer", model, "--output"]
    held = ["--valid-source", f"files:{folder}/valid.jsonl", "--workers", "1"]
    tokenize_corpus.tokenize(["--source", source, *common, f"{folder}/corpus", *held])
    pairs = ["--source", f"files:{folder}/pairs.jsonl", "--label-key", "label", "--valid-fraction", "0.2"]
    prepare_pairs.prepare([*pairs, *common, f"{folder}/pairs"])
    make_clicks(folder / "clicks", valid_rows=600)
    return folder


def page_of(material, name, *more):
    """The text of the page, and its elements; the parser takes well-formed text alone."""
    output = material / f"{name}{len(more)}.html"
    report(["--corpus", str(material / name), "--output", str(output), *more])
    return output.read_text(), ElementTree.fromstring(output.read_text())


def tables(root):
    """Cells by section, row and column."""
    body, found, title = root.find("body"), {}, ""
    for element in body:
        title = element.text if element.tag == "h2" else title
        for table in element.iter("table"):
            heads = ["".join(head.itertext()) for head in table.find("thead").iter("th")][1:]
            rows = table.find("tbody").iter("tr")
            cells = {row.find("th").text: [cell.text for cell in row.iter("td")] for row in rows}
            found[title] = {name: dict(zip(heads, values, strict=True)) for name, values in cells.items()}
    return found


def test_figures_of_text_are_those_of_the_documents(material):
    corpus, found = Corpus(material / "corpus"), tables(page_of(material, "corpus")[1])
    assert found["Size"]["documents"] == {"train": "40", "valid": "2"}
    assert found["Size"]["documents in the sample"] == {"train": "40", "valid": "2"}
    assert found["Copies"] == {
        "exact copies of earlier documents": {"train": "12.5%", "valid": "0.0%"},
        "near copies of earlier documents": {"train": "20.0%", "valid": "0.0%"},
        "near copies of documents of train": {"train": "–", "valid": "50.0%"},
    }
    assert found["Left out by the preparation"] == {"broken line": {"count": "2"}}
    for name, split in corpus.splits.items():
        ids = split.read(0, split.tokens)
        lengths = [len(part) for part in np.split(ids, np.flatnonzero(ids == split.eos_id) + 1)[:-1]]
        assert found["Size"]["tokens"][name] == f"{len(ids):,}"
        assert found["Lengths"]["longest"][name] == f"{max(lengths) - 1:,}"
        assert found["Lengths"]["mean, in tokens"][name] == f"{sum(lengths) / len(lengths) - 1:,.1f}"
        used = len(set(ids.tolist()) - {split.eos_id})
        assert found["Tokens"]["share of the vocabulary that occurs"][name] == f"{used / corpus.vocab_size:.1%}"


def test_the_most_frequent_tokens_are_shown(material):
    corpus, found = Corpus(material / "corpus"), tables(page_of(material, "corpus")[1])
    split, surfaces = corpus.split("train"), open_tokenizer(corpus.tokenizer_path).surfaces()
    ids = split.read(0, split.tokens).tolist()
    text = [token for token in ids if token != split.eos_id]
    most = max(set(text), key=lambda token: (text.count(token), -token))
    name, cells = next(iter(found["Most frequent tokens"].items()))
    assert name == f"{surfaces[most]!r} (id {most})"
    assert cells["train"] == f"{text.count(most) / len(text):.1%}"


def test_a_sample_is_named_as_one(material, capsys):
    text, _ = page_of(material, "corpus", "--sample", "10")
    line = re.search(r"train: a sample of (\d+) of 40 documents", text)
    assert 3 <= int(line[1]) <= 20
    assert f"{line[0]}\nvalid: all 2 documents" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["corpus", "pairs", "clicks"])
def test_the_page_is_well_formed_and_refers_to_nothing_else(material, name):
    text, root = page_of(material, name)
    assert not re.search(r"https?:|\bsrc=|@import|<script|<link", text)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert "mathdefault" not in text
    assert len(list(root.iter("svg"))) == (0 if name == "clicks" else 2)
    assert root.find(".//title").text == name


def test_pairs_have_labels(material):
    found = tables(page_of(material, "pairs")[1])
    counts = found["Size"]["pairs"]
    assert sum(map(int, counts.values())) == 200
    labels = np.fromfile(material / "pairs/train/labels.bin", dtype="<i2").tolist()
    names = json.loads((material / "pairs/manifest.json").read_text())["labels"]
    assert {name: cells["train"] for name, cells in found["Labels"].items()} == {
        name: f"{labels.count(number) / len(labels):.1%}" for number, name in enumerate(names)
    }
    assert found["Size"]["MB of text"] == {"train": "–", "valid": "–"}


def test_a_sample_of_pairs_has_their_tokens(material):
    whole, part = (tables(page_of(material, "pairs", *more)[1]) for more in ((), ("--sample", "64")))
    assert part["Size"]["pairs in the sample"]["train"] == "64"
    assert (
        0.8
        < float(part["Lengths"]["mean, in tokens"]["train"]) / float(whole["Lengths"]["mean, in tokens"]["train"])
        < 1.25
    )


def test_clicks_have_no_near_copies(material, tmp_path):
    with pytest.raises(DataError, match=r"--near-duplicates compares texts, and .*clicks holds clicks; remove it"):
        report(["--corpus", str(material / "clicks"), "--output", f"{tmp_path}/x.html", "--near-duplicates", "0.8"])


def test_clicks_are_described_column_by_column(material):
    found, splits = tables(page_of(material, "clicks")[1]), ClickCorpus(material / "clicks").splits
    train, valid = splits["train"], splits["valid"]
    clicked = sum(train["labels"].tolist()) / 600
    assert found["Size and labels"]["clicked"]["train"] == f"{clicked:.1%}"
    numbers = train["dense"][:, 1].astype(np.float64).tolist()
    mean = sum(numbers) / 600
    deviation = math.sqrt(sum((number - mean) ** 2 for number in numbers) / 600)
    cells = found["Numbers in train"]["y"]
    assert [cells["mean"], cells["deviation"]] == [f"{mean:.4g}", f"{deviation:.4g}"]
    assert cells["mean of valid"] == f"{sum(valid['dense'][:, 1].tolist()) / 600:.4g}"
    words, others = train["categories"][:, 2].tolist(), valid["categories"][:, 2].tolist()
    cells = found["Categories in train"]["c"]
    assert cells["share of the most frequent row"] == f"{max(words.count(word) for word in set(words)) / 600:.1%}"
    assert cells["rows of valid that train has not"] == f"{sum(word not in words for word in others) / 600:.1%}"


def test_words_that_occur_are_those_of_all_rows_and_not_of_a_sample(material, monkeypatch):
    """Of 600 rows, 16 hold few of 40 words: nearly all rows of valid seemed to hold words that train has not."""
    monkeypatch.setattr("data_prep.report.click_sample._BLOCK", 7)
    whole, part = (
        tables(page_of(material, "clicks", *more)[1])["Categories in train"] for more in ((), ("--sample", "16"))
    )
    for name in whole:
        assert part[name]["rows that occur"] == whole[name]["rows that occur"]
        assert (
            part[name]["rows of valid that train has not"] == whole[name]["rows of valid that train has not"] == "0.0%"
        )


@pytest.mark.parametrize("split", ["train", "valid"])
def test_rows_that_no_table_has_are_refused(material, tmp_path, split):
    shutil.copytree(material / "clicks", tmp_path / "clicks")
    (tmp_path / f"clicks/{split}/categories.bin").write_bytes(b"\x7f" * 4 * 3 * 600)
    with pytest.raises(DataError, match=r"holds row 2139062143 of table 0, which has 60; copy the data set again"):
        report(["--corpus", str(tmp_path / "clicks")])


def test_the_log_loss_without_features_is_that_of_a_loop():
    labels = np.array([1, 0, 0, 1, 0], dtype=np.int8)
    expected = -sum(math.log(0.3 if label else 0.7) for label in labels) / 5
    assert log_loss(labels, 0.3) == pytest.approx(expected)
    assert log_loss(np.zeros(3), 0.0) == 0
    assert log_loss(np.ones(3), 0.0) == math.inf


def test_text_of_documents_is_never_read_as_markup(material):
    assert NASTY in (material / "docs.jsonl").read_text()
    assert not list(page_of(material, "corpus")[1].iter("script"))


def test_mistakes_end_in_one_sentence(material, tmp_path, capsys, monkeypatch):
    with pytest.raises(DataError, match="no data set at"):
        report(["--corpus", str(tmp_path)])
    (tmp_path / "manifest.json").write_text('{"kind": "pictures"}')
    with pytest.raises(DataError, match=r"holds pictures, and a report describes text, pairs or clicks"):
        report(["--corpus", str(tmp_path)])
    page = str(tmp_path / "none" / "page.html")
    monkeypatch.setattr("sys.argv", ["report_corpus.py", "--corpus", str(material / "clicks"), "--output", page])
    assert main() == 2
    assert "No such file or directory; mend that" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [{"dense": [{"name": 3}, 5]}, {"categories": None}, {"categories": 7}, {"skipped": {"x": "y"}}, {"skipped": [1]}],
)
def test_a_manifest_that_somebody_changed_is_described_or_refused(material, tmp_path, changes):
    folder = with_manifest(material / "clicks", tmp_path / "clicks", **changes)
    found = tables(page_of(tmp_path, folder.name)[1])
    assert found["Size and labels"]["rows"] == {"train": "600", "valid": "600"}


def test_labels_besides_0_and_1_are_refused(material, tmp_path):
    shutil.copytree(material / "clicks", tmp_path / "clicks")
    (tmp_path / "clicks/valid/labels.bin").write_bytes(b"\2" * 600)
    with pytest.raises(DataError, match="a label that is neither 0 nor 1"):
        report(["--corpus", str(tmp_path / "clicks")])


def test_another_tokenizer_is_refused(material, tmp_path):
    folder = with_manifest(material / "corpus", tmp_path / "corpus", vocab_size=321)
    with pytest.raises(DataError, match="is not the tokenizer that made"):
        report(["--corpus", str(folder)])


def test_damaged_pairs_are_refused(material, tmp_path):
    shutil.copytree(material / "pairs", tmp_path / "pairs")
    ends = np.fromfile(tmp_path / "pairs/train/first_end.bin", dtype="<i8")
    ends[3] = 10**6
    ends.tofile(tmp_path / "pairs/train/first_end.bin")
    with pytest.raises(DataError, match="a pair that ends before it begins"):
        report(["--corpus", str(tmp_path / "pairs"), "--output", str(tmp_path / "page.html")])
