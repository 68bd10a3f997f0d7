"""Whole files are replaced in one move, and the room of files stays cheap to import."""

import subprocess
import sys

import pytest
from support import ROOT, environment

from comera_dist.storage.files import write_whole
from comera_dist.storage.json_files import read_json


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
    code = "import sys, comera_dist.storage.files, comera_dist.storage.json_files; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(PYTHONPATH=str(ROOT)), check=True)
