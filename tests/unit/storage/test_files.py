"""Whole files are replaced in one move, and JSON in them is what any reader of JSON takes."""

import json
import math
import subprocess
import sys

import pytest
from support import ROOT, environment

from comera_dist.storage.files import finite_json, read_json, write_whole


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("content", ["{}", b"{}"], ids=["text", "bytes"])
def test_a_file_is_replaced_whole(tmp_path, content, flushed):
    path = tmp_path / "file.json"
    path.write_text("old")
    with path.open() as before:
        write_whole(path, content, flushed)
        assert before.read() == "old"  # of a reader that has opened it
    assert path.read_text() == "{}"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize("content", [None, "", "{", "[" * 99_999, "\udce9"])
def test_a_file_that_is_no_json_is_none(tmp_path, content):
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    assert read_json(path) is None


def test_writing_files_imports_no_torch():
    code = "import sys, comera_dist.storage.files; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(PYTHONPATH=str(ROOT)), check=True)


def test_numbers_that_are_not_finite_are_null_and_nothing_else_changes():
    record = {
        "loss": math.nan,
        "all": [1.5, -math.inf, (math.inf, 2)],
        "name": "NaN",
        "none": None,
        "yes": True,
        "n": 3,
    }
    text = finite_json(record, indent=1)
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == {
        **record, "loss": None, "all": [1.5, None, [None, 2]]}  # fmt: skip
    assert json.loads(finite_json(record)) == json.loads(text)
