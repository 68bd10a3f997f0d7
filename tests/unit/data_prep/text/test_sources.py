"""Documents come out of every kind of source exactly; broken parts are counted, or stop a strict run."""

import bz2
import gzip
import json
import lzma
import sys

import datasets
import pyarrow
import pytest
import zstandard
from fake_hub import FakeBuilder
from pyarrow import parquet

from comera_dist.errors import DataError
from data_prep.files.skips import Skips
from data_prep.text.arguments import open_source
from data_prep.text.separator import Separator
from data_prep.text.sources import SKIPPED, Documents, Reading

TEXT = "a = 1\r\n\tb\u2581 \U0001f600  \n"
COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
}


def read(spec, text_key="text", strict=False):
    skips = Skips(strict, SKIPPED)
    return texts(Documents([str(spec)], Reading(text_key)), skips), skips.counts


def texts(documents, skips=None):
    return [document.words for document in documents.read(skips or Skips(False, SKIPPED))]


def files(folder, **contents):
    for name, raw in contents.items():
        stem, _, suffixes = name.partition("_")
        (folder / f"{stem}.{suffixes.replace('_', '.')}").write_bytes(raw)
    return f"files:{folder}/*"


def test_stdlib_is_the_running_interpreters_own_code_without_tests():
    (source,) = Documents(["python-stdlib"]).sources
    assert len(source.paths) > 300
    assert source.paths == tuple(sorted(source.paths))
    assert not [path for path in source.paths if {"test", "tests", "site-packages"} & set(path.parts)]
    assert any(path.name == "argparse.py" for path in source.paths)
    assert source.size_hint() > 5_000_000


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
@pytest.mark.parametrize("kind", ["txt", "md", "py", "jsonl"])
def test_text_formats_are_read_to_the_byte(tmp_path, kind, suffix):
    raw = json.dumps({"text": TEXT}).encode() if kind == "jsonl" else TEXT.encode()
    raw = COMPRESS.get(suffix, bytes)(raw)
    (tmp_path / f"a.{kind}{suffix}").write_bytes(raw)
    assert read(f"files:{tmp_path}/*") == ([TEXT], dict.fromkeys(SKIPPED, 0))


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_json_lines_may_be_named_json_and_other_json_is_text(tmp_path, suffix):
    lines = "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in ("one", "two"))
    others = ['{"text":\n"a"}\n', '{"text": "a"}\n', '[{"text": "a"},\n{"text": "b"}]\n']
    for number, text in enumerate([lines, *others]):
        (tmp_path / f"{number}.json{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(text.encode()))
    assert read(f"files:{tmp_path}/*")[0] == ["one", "two", *others]


def test_parquet_column(tmp_path):
    parquet.write_table(pyarrow.table({"body": [TEXT, None, "b"], "n": [1, 2, 3]}), tmp_path / "a.parquet")
    documents, counts = read(f"files:{tmp_path}/a.parquet", "body")
    assert documents == [TEXT, "b"]
    assert counts["broken_line"] == 1
    with pytest.raises(DataError, match=r"no column text; name one of body, n with --text-key"):
        read(f"files:{tmp_path}/a.parquet")


def test_one_txt_holds_many_documents(tmp_path):
    (tmp_path / "books.txt").write_text("one\n\nmore\n<|endoftext|>\ntwo <|endoftext|> still two\n<|endoftext|>\n")
    assert read(f"files:{tmp_path}/books.txt")[0] == ["one\n\nmore\n", "two <|endoftext|> still two\n"]


def test_files_come_in_the_order_of_their_names(tmp_path):
    for folder in ("b", "a"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(folder)
    assert read(f"files:{tmp_path}/**/*.txt")[0] == ["a", "b"]


def test_broken_pieces_are_counted_and_the_rest_is_kept(tmp_path):
    lines = [
        b'{"text": "good"}',
        b"{oops",
        b'{"other": 1}',
        b'{"text": 5}',
        b'["text"]',
        b'{"text": "\xff"}',
        b"",
    ]
    lines += [b'{"text": "\\ud800"}', b'{"text": " "}', b"[" * 100_000]
    spec = files(tmp_path, a_jsonl=b"\n".join(lines), b_txt=b"\xff\n", c_py=b"", d_txt_gz=b"no gzip", e_py=b"x = 1")
    (tmp_path / "f.parquet").write_bytes(b"no parquet")
    documents, counts = read(spec)
    assert documents == ["good", "x = 1"]
    assert counts == {"empty": 2, "bad_encoding": 3, "broken_line": 5, "broken_file": 2, "in_valid": 0}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_was_cut_short_is_noticed(tmp_path, suffix):
    lines = b"".join(json.dumps({"text": f"document {i * 7919}"}).encode() + b"\n" for i in range(20_000))
    packed = COMPRESS[suffix](lines)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(packed[: len(packed) // 2])
    documents, counts = read(f"files:{tmp_path}/*")
    assert len(documents) < 20_000
    assert counts["broken_file"] == 1


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("size", [1, 300_000])
def test_a_file_of_several_members_is_read_to_its_end(tmp_path, suffix, size):
    """`cat` joins compressed files, and xz and gzip allow zeros between them."""
    padding = bytes(4) if suffix in (".gz", ".xz") else b""
    members = [COMPRESS[suffix](json.dumps({"text": letter * size}).encode() + b"\n") for letter in "abc"]
    (tmp_path / f"a.jsonl{suffix}").write_bytes(padding.join([*members, b""]))
    assert read(f"files:{tmp_path}/*", strict=True)[0] == ["a" * size, "b" * size, "c" * size]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_damaged_later_member_is_counted(tmp_path, suffix):
    first, second = (COMPRESS[suffix](json.dumps({"text": letter * 100_000}).encode() + b"\n") for letter in "ab")
    for damaged in (bytes([second[0] ^ 1]) + second[1:], second[:-1], b"appended"):
        (tmp_path / f"a.jsonl{suffix}").write_bytes(first + damaged)
        documents, counts = read(f"files:{tmp_path}/*")
        assert set(documents) <= {"a" * 100_000, "b" * 100_000}
        assert counts["broken_file"] == 1


@pytest.mark.parametrize("content", [b"", b"\xff"])
def test_strict_stops_with_the_place(tmp_path, content):
    (tmp_path / "bad.py").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.py.*--strict"):
        read(f"files:{tmp_path}/bad.py", strict=True)


def test_the_report_names_kind_count_and_first_place(tmp_path):
    spec = files(tmp_path, a_py=b"", b_py=b"")
    skips = Skips(False, SKIPPED)
    assert texts(Documents([spec]), skips) == []
    assert skips.report() == [f"skipped 2 empty, the first at {tmp_path}/a.py: an empty document"]


@pytest.mark.parametrize("spec", ["", "stdlib", "files:", "files", "hub:", "http://x"])
def test_unknown_sources_are_refused(spec):
    with pytest.raises(DataError, match="use python-stdlib, files:GLOB or hub:NAME"):
        Documents([spec])


def test_missing_files_are_refused_before_reading(tmp_path):
    with pytest.raises(DataError, match="no file matches"):
        Documents([f"files:{tmp_path}/*.txt"])
    with pytest.raises(DataError, match="not a pattern of files"):
        Documents(["files:~nobody-has-this-name/*"])


def test_any_text_file_is_read_and_binary_ones_are_counted(tmp_path):
    names = ["A.java", "b.c", "c.rst", "d.html", "e.TXT", "Makefile", "f.cfg"]
    for name in names:
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "g.java.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "h.JSONL").write_text('{"text": "a row"}')
    (tmp_path / "i.docx").write_bytes(b"PK\x03\x04\0\0")
    (tmp_path / "j.class.gz").write_bytes(gzip.compress(b"\xca\xfe\0"))
    (tmp_path / "k.java").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "l.txt").write_text("a NUL \0 in a file that is called text")
    found, counts = read(f"files:{tmp_path}/*")
    expected = [*(f"text of {name}" for name in names), "packed", "a row", "a NUL \0 in a file that is called text"]
    assert sorted(found) == sorted(expected)
    assert (counts["binary"], counts["bad_encoding"]) == (2, 1)
    with pytest.raises(DataError, match=r"i\.docx: a binary file"):
        read(f"files:{tmp_path}/*", strict=True)


def test_a_separator_ends_documents_in_every_text_file(tmp_path):
    (tmp_path / "a.rst").write_text("one\r\n=====\r\ntwo\n==\n<|endoftext|>\n===\n====\nthree")
    (tmp_path / "b.txt").write_text("four\n===\n")
    (tmp_path / "c.jsonl").write_text('{"text": "five\\n===\\nsix"}')
    documents = Documents([f"files:{tmp_path}/*"], Reading(separator=Separator("={3,}")))
    found = texts(documents, Skips(True, SKIPPED))
    assert found == [
        "one\r\n",
        "two\n==\n<|endoftext|>\n",
        "three",
        "four\n",
        "five\n===\nsix",
    ]


def test_a_separator_that_matches_no_line_is_told_unless_an_earlier_run_may_have_met_one(tmp_path):
    (tmp_path / "a.md").write_text("one\n==\ntwo\n")
    (tmp_path / "b.txt").write_text("one\n===\ntwo\n")

    def notes(names, regex, resumed=False):
        documents = Documents([f"files:{tmp_path}/{names}"], Reading(separator=Separator(regex)))
        if resumed:
            documents.resume({"source": 0, "within": None})
        texts(documents)
        return documents.notes()

    told = ["no line that was read matches --document-separator '=': each file of text is one document"]
    assert notes("*", "=") == told
    assert [notes("*", "=", resumed=True), notes("*", "==="), notes("a*", "=+")] == [[], [], []]
    assert Documents([f"files:{tmp_path}/*"]).notes() == []


def test_files_that_look_like_tables_and_are_read_as_text_are_told(tmp_path):
    rows = b'{"text": "a"}\n{"text": "b"}\n'
    spec = files(
        tmp_path, a_json=rows, b_json=b'[{"text": "a"}]', c_csv_gz=gzip.compress(b"text\na"), d_txt=b"a", e_jsonl=rows
    )
    documents = Documents([spec])
    assert documents.notes() == []
    assert texts(documents) == ["a", "b", '[{"text": "a"}]', "text\na", "a", "a", "b"]
    (told,) = documents.notes()
    assert told.startswith(
        f"read as text, with all marks and names: 2 files of .json, .csv, .tsv, the first {tmp_path}/b.json;"
    )


def test_a_setting_that_no_source_takes_is_refused(tmp_path):
    def opened(source, valid=None, **settings):
        split = {"seed": 0, "valid_fraction": 0.5, "valid_source": valid}
        return open_source({"source": source, "text_key": "text", **split, **settings})

    for name in ("a.md", "b.jsonl", "b.json", "c.json"):
        (tmp_path / name).write_text('{"body": "b"}\n' * (1 if name == "c.json" else 2))
    texts, tables = [f"files:{tmp_path}/{name}" for name in ("a.md", "c.json")], [f"files:{tmp_path}/b.*", "hub:x"]
    for source in (*texts, texts, "python-stdlib"):
        opened(source, document_separator="=")
        with pytest.raises(DataError, match=r"^--text-key is for tables .*, and the sources are files of text; remove"):
            opened(source, text_key="body")
    for source in (*tables, tables):
        opened(source, text_key="body")
        with pytest.raises(DataError, match=r"^--document-separator is for files of text, and the sources are"):
            opened(source, document_separator="=")
    for source, valid in ((f"files:{tmp_path}/*", None), ([texts[0], tables[0]], None), (tables[0], texts[0])):
        opened(source, valid, text_key="body", document_separator="=")


def test_a_file_that_several_sources_name_is_read_once(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "d.txt").symlink_to(tmp_path / "a.txt")
    sources = Documents([f"files:{tmp_path}/[bd].txt", f"files:{tmp_path}/*"])
    assert texts(sources) == ["b", "a", "c"]
    assert sources.size_hint() == 3
    with pytest.raises(DataError, match="python-stdlib' is named twice"):
        Documents(["python-stdlib", "python-stdlib"])


def test_hub_streams_rows_of_a_local_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "my_data"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", TEXT)))
    (folder / "validation.jsonl").write_text(json.dumps({"text": "held out"}) + "\n")
    assert read(f"hub:{folder}")[0] == ["one", TEXT]
    assert read(f"hub:{folder}::validation")[0] == ["held out"]
    with pytest.raises(DataError, match="no column body; name one of text"):
        read(f"hub:{folder}", "body")


def test_hub_asks_for_a_stream_and_reads_it_lazily(monkeypatch):
    calls, made = [], []

    def rows():
        for index in range(1000):
            made.append(index)
            yield {"text": f"row {index}" if index else None}

    def load_builder(*args, **kwargs):
        calls.append((args, kwargs))
        return FakeBuilder(datasets.IterableDataset.from_generator(rows), calls)

    monkeypatch.setattr(datasets, "load_dataset_builder", load_builder)
    skips = Skips(False, SKIPPED)
    documents = Documents(["hub:allenai/c4:en"]).read(skips)
    assert [next(documents).words, next(documents).words] == ["row 1", "row 2"]
    assert calls == [(("allenai/c4", "en"), {"revision": None}), "train"]
    assert len(made) < 100
    assert skips.counts["broken_line"] == 1


def test_a_hub_data_set_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="cannot be read"):
        read(f"hub:{tmp_path}/nothing")

    def fail(*args, **kwargs):
        raise ConnectionError("no route to host\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset_builder", fail)
    with pytest.raises(DataError, match=r"^data set x cannot be read \(no route to host\)"):
        read("hub:x")


@pytest.mark.parametrize("name", ["train.jsonl", "README.md", "train.zip"])
def test_a_damaged_folder_of_the_hubs_form_is_one_sentence(tmp_path, monkeypatch, name):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text({"train.jsonl": "", "README.md": "---\nconfigs: [5\n---\n"}.get(name, "PK"))
    with pytest.raises(DataError, match=r"data cannot be read \(.*\); check its name"):
        read(f"hub:{tmp_path}/data")


def test_reading_files_does_not_load_datasets_or_torch():
    import subprocess

    code = "import sys, data_prep.tokenize_corpus; sys.exit(bool({'torch', 'datasets'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
