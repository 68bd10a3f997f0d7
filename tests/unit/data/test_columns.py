"""A data set of columns opens only when it is whole and of the kind that is asked for."""

import json
import shutil

import numpy as np
import pytest

from comera_dist.data.columns import Column, ColumnSet
from comera_dist.errors import DataError
from data_prep.files.column_folder import ColumnFolder

COLUMNS = {"dense": Column("<f4", 3), "labels": Column("|i1")}
WIDE, NARROW = np.arange(12, dtype="<f4").reshape(4, 3), np.array([-5, 100])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "set"
    folder = ColumnFolder(path, "clicks", COLUMNS, ["train", "valid"], {})
    with folder.writing():
        folder.append("train", {"dense": WIDE, "labels": NARROW})
        folder.publish({"facts": 1}, {"words.json": b"[]"})
    return path


def test_columns_come_back_with_their_shapes_and_numbers(finished):
    opened = ColumnSet(finished, "clicks")
    assert opened.manifest["facts"] == 1
    train = opened.split("train")
    assert train["dense"].tolist() == WIDE.tolist()
    assert train["labels"].tolist() == NARROW.tolist()
    assert (train["dense"].dtype, train["labels"].dtype) == (np.float32, np.int8)
    assert {name: column.shape for name, column in opened.split("valid").items()} == {"dense": (0, 3), "labels": (0,)}


def test_an_unknown_split_is_answered_with_those_there_are(finished):
    with pytest.raises(DataError, match=r"no split 'test'; it has train, valid"):
        ColumnSet(finished, "clicks").split("test")


def test_the_fingerprint_is_that_of_content_and_facts(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    assert ColumnSet(copy, "clicks").fingerprint == ColumnSet(finished, "clicks").fingerprint
    edit(copy, facts=2)
    assert ColumnSet(copy, "clicks").fingerprint != ColumnSet(finished, "clicks").fingerprint


def edit(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def cut_short(path):
    file = path / "train" / "dense.bin"
    file.write_bytes(file.read_bytes()[:-1])


MISTAKES = {
    "no data set.*prepare_clicks.py": shutil.rmtree,
    "not JSON.*--overwrite": lambda path: (path / "manifest.json").write_text("{"),
    "47 bytes, the manifest says 48": cut_short,
    "labels.bin is missing, the manifest lists it with 2 bytes": lambda path: (path / "train" / "labels.bin").unlink(),
    "holds pairs, and this model reads clicks": lambda path: edit(path, kind="pairs"),
    "holds text, and this model reads clicks": lambda path: (path / "manifest.json").write_text(
        '{"format": 1, "dtype": "uint16"}'
    ),
    "format is 2 and should be 1": lambda path: edit(path, format=2),
    "it is not an object": lambda path: (path / "manifest.json").write_text("[]"),
    "splits is not an object": lambda path: edit(path, splits=None),
    "sha256 is missing": lambda path: edit(
        path, splits={"train": {"dense": {"dtype": "<f4", "width": 3, "entries": 4}}}
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_what_is_not_whole_is_refused_with_a_remedy(finished, tmp_path, message):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    MISTAKES[message](copy)
    with pytest.raises(DataError, match=message):
        ColumnSet(copy, "clicks")


@pytest.mark.parametrize("file", ["train/dense.bin", "words.json"])
def test_verify_finds_a_changed_byte(finished, tmp_path, file):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    ColumnSet(copy, "clicks").contents.verify()
    (copy / file).write_bytes(b"!" + (copy / file).read_bytes()[1:])
    with pytest.raises(DataError, match=rf"{file} is damaged.*--overwrite"):
        ColumnSet(copy, "clicks").contents.verify()
