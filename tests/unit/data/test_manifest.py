"""Whatever a manifest holds, opening, verifying and reading the data end with their batches or with a DataError."""

import copy
import json
import random

import numpy as np
import pytest
from support import make_clicks, make_corpus, make_pairs

from comera_dist.data.clicks import ClickCorpus, ClickExamples
from comera_dist.data.masking import MaskedPairs
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.windows import TrainWindows, ValidationWindows
from comera_dist.errors import DataError
from data_prep.verify import verify

ROWS = np.array([0, 1, 17])
WRONG = [
    None,
    True,
    -1,
    0,
    1,
    2,
    1.5,
    10**30,
    "",
    "x",
    "|O",
    "<i4",
    "../x",
    "\ud800",
    "\0",
    "é" * 300,
    [],
    ["x"],
    {},
    {"x": 1},
]


def text(folder):
    corpus = Corpus(folder)
    splits = corpus.split("train"), corpus.split("valid")
    return [TrainWindows(splits[0], 16), ValidationWindows(splits[1], 16)]


def labelled(folder):
    return [LabelledPairs(PairCorpus(folder), "train", 16)]


def pairs(folder):
    return [*labelled(folder), MaskedPairs(PairCorpus(folder), "valid", 16, 0.15, seed=0)]


def clicks(folder):
    corpus = ClickCorpus(folder)
    return [ClickExamples(corpus, "train"), ClickExamples(corpus, "valid")]


KINDS = {"text": (make_corpus, text), "pairs": (make_pairs, pairs), "clicks": (make_clicks, clicks)}


@pytest.fixture(params=KINDS)
def prepared(request, tmp_path):
    """A data set, and a function that opens, verifies and reads it."""
    make, examples = KINDS[request.param]
    folder = make(tmp_path / "data")

    def read():
        verify([str(folder)])
        return [[tensor.tolist() for tensor in each.batch(ROWS, ROWS)] for each in examples(folder)]

    return folder / "manifest.json", read


def outcome(read) -> str:
    """The sentence of a DataError, "" where the data were read; any other error is the test's."""
    try:
        read()
    except DataError as error:
        return str(error)
    return ""


def test_flipped_bits_are_harmless_or_refused(prepared, capsys):
    manifest, read = prepared
    whole, draw, refused = manifest.read_bytes(), random.Random(0), 0
    read()
    for _ in range(400):
        place = draw.randrange(len(whole))
        manifest.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
        refused += bool(outcome(read))
    assert refused > 200


def places(record, path=()):
    """The path of every value in a JSON record."""
    yield path
    below = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in below:
        yield from places(value, (*path, key))


def test_values_of_other_types_are_harmless_or_refused(prepared, capsys):
    manifest, read = prepared
    whole = json.loads(manifest.read_text())
    for *folders, last in list(places(whole))[1:]:
        for wrong in WRONG:
            changed = copy.deepcopy(whole)
            parent = changed
            for key in folders:
                parent = parent[key]
            parent[last] = wrong
            manifest.write_text(json.dumps(changed))
            outcome(read)
        del parent[last]
        manifest.write_text(json.dumps(changed))
        outcome(read)


def test_a_dtype_of_pointers_is_refused_and_verify_says_so(tmp_path):
    for make, split, column in ((make_pairs, "train", "first_end"), (make_clicks, "valid", "labels")):
        folder = make(tmp_path / column)
        whole = json.loads((folder / "manifest.json").read_text())
        entry = whole["splits"][split][column]
        entry.update(dtype="|O", entries=entry["entries"] * np.dtype(entry["dtype"]).itemsize // 8)
        (folder / "manifest.json").write_text(json.dumps(whole))
        with pytest.raises(DataError, match=rf'splits\.{split}\.{column}\.dtype is "\|O", expected one of [<|]i'):
            verify([str(folder)])


@pytest.mark.parametrize("path", ["../other/00000.bin", "/etc/hostname", "train/../../other/00000.bin"])
def test_a_file_outside_of_the_corpus_is_not_read(tmp_path, path):
    folder = make_corpus(tmp_path / "corpus")
    whole = json.loads((folder / "manifest.json").read_text())
    whole["splits"]["train"]["shards"][0]["file"] = path
    (folder / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(DataError, match=r"shards\[0\]\.file is .* expected train/00000\.bin"):
        Corpus(folder)


def test_ids_that_the_manifest_does_not_know_are_refused(tmp_path):
    for make, key, few, examples in (
        (make_corpus, "vocab_size", 5, text),
        (make_pairs, "vocab_size", 5, labelled),
        (make_pairs, "labels", ["less"], labelled),
        (make_clicks, "table_rows", [60, 2, 48], clicks),
    ):
        folder = make(tmp_path / f"{make.__name__}-{key}")
        whole = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**whole, key: few}))
        with pytest.raises(DataError, match=r"holds (token|label|row) \d+.*(has|knows) "):
            examples(folder)[0].batch(ROWS, ROWS)
