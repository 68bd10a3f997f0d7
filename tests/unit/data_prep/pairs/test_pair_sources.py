"""Pairs come out of every kind of source as they are; what cannot be used is counted by kind, or stops a strict run."""

import gzip
import json
import lzma

import datasets
import pyarrow
import pytest
from fake_hub import FakeBuilder
from pyarrow import parquet
from support import ROOT

from comera_dist.errors import DataError
from data_prep.files.skips import Skips
from data_prep.pairs.sources import SKIPPED, Keys, Pairs

KEYS = Keys(("premise", "sentence1"), ("hypothesis", "sentence2"), ("label", "gold"))
NO_LABELS = Keys(KEYS.first, KEYS.second)
REAL = ROOT.parent / "shared" / "data"


def read(spec, keys=KEYS, strict=False):
    """(first, second, label) of each pair, and the counts of what was skipped."""
    skips = Skips(strict, SKIPPED)
    pairs = [tuple(pair)[1:4] for pair in Pairs([str(spec)], keys).read(skips)]
    return pairs, {kind: count for kind, count in skips.counts.items() if count}


def write(path, *lines):
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return f"files:{path}"


def test_tables_name_their_columns_in_a_header(tmp_path):
    write(tmp_path / "a.tsv", "id\tpremise\thypothesis\tlabel", "1\tone \ttwo\tyes", "", "2\té\t'4'\tno")
    write(tmp_path / "b.csv", "\ufeffsentence2,gold,sentence1", 'five,maybe,"six, ""or""\nseven"')
    pairs, counts = read(f"files:{tmp_path}/*")
    assert pairs == [("one ", "two", "yes"), ("é", "'4'", "no"), ('six, "or"\nseven', "five", "maybe")]
    assert not counts
    assert read(f"files:{tmp_path}/a.tsv", NO_LABELS)[0] == [("one ", "two", None), ("é", "'4'", None)]


def test_a_cell_of_a_csv_may_have_many_lines(tmp_path):
    """Rows are counted, not lines, and a cell may be longer than Python reads by default."""
    long = "a line, with a comma\n" * 9000
    cells = [f'"{text}",b,c' for text in ("one\ntwo", long, "three")]
    spec = write(tmp_path / "a.csv", "premise,hypothesis,label", *cells)
    assert [first for first, _, _ in read(spec)[0]] == ["one\ntwo", long, "three"]
    places = [pair.where for pair in Pairs([spec], KEYS).read(Skips(True, SKIPPED))]
    assert places == [f"{tmp_path}/a.csv:{row}" for row in (2, 3, 4)]


def test_marks_in_a_tsv_are_text_unless_a_writer_doubled_them(tmp_path):
    cells = ['"The ""Shop"" is open."', '"Stop!" he said', 'and left"', '"no marks within"', '""said""', '"', '""""']
    spec = write(tmp_path / "a.tsv", "premise\thypothesis\tlabel", *(f"{cell}\tx\ty" for cell in cells))
    assert [first for first, _, _ in read(spec)[0]] == ['The "Shop" is open.', *cells[1:6], '"']


def test_json_lines_may_hold_lists_of_words_and_other_columns_in_each_row(tmp_path):
    rows = [
        {"docstring_tokens": ["Adds", "two"], "code_tokens": ["def", "f", "(", ")"]},
        {"premise": "one", "code_tokens": "two", "label": 3},
    ]
    spec = write(tmp_path / "a.jsonl", *map(json.dumps, rows))
    keys = Keys(("docstring_tokens", "premise"), ("code_tokens",))
    assert read(spec, keys)[0] == [("Adds two", "def f ( )", None), ("one", "two", None)]
    labelled = Keys(keys.first, keys.second, ("label",))
    assert read(spec, labelled) == ([("one", "two", "3")], {"missing_column": 1})


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_tables(tmp_path, suffix, compress):
    (tmp_path / f"a.tsv{suffix}").write_bytes(compress(b"premise\thypothesis\nx\ty\n"))
    assert read(f"files:{tmp_path}/*", NO_LABELS) == ([("x", "y", None)], {})
    (tmp_path / f"a.tsv{suffix}").write_bytes(compress(b"premise\thypothesis\nx\ty\n" * 2000)[:-20])
    assert read(f"files:{tmp_path}/*", NO_LABELS)[1]["broken_file"] == 1


def test_rows_that_cannot_be_used_are_counted_by_kind(tmp_path):
    header = "premise\thypothesis\tlabel"
    bad = ["a\tb", "a\tb\tc\td", b"\xff\tb\tyes", " \tb\tyes", "a\t\tyes", "a\tb\t-", "a\tb\t"]
    write(tmp_path / "a.tsv", header, "good\tpair\tyes", *bad)
    lines = ["{oops", "[1]", '{"premise": "a", "hypothesis": "b"}', '{"premise": 5, "hypothesis": "b", "label": "yes"}']
    lines += ['{"premise": "\\ud800", "hypothesis": "b", "label": "yes"}', '{"premise": "a", "label": "yes"}']
    write(tmp_path / "b.jsonl", *lines, '{"premise": "a", "hypothesis": "b", "label": null}')
    write(tmp_path / "c.csv", "premise,hypothesis,label", 'a,"b"c,yes', "also,good,yes")
    pairs, counts = read(f"files:{tmp_path}/*")
    assert pairs == [("good", "pair", "yes"), ("also", "good", "yes")]
    assert counts == {"broken_line": 5, "bad_encoding": 2, "empty": 2, "unknown_label": 3, "missing_column": 3}


def test_a_broken_cell_that_nobody_reads_does_no_harm(tmp_path):
    spec = write(tmp_path / "a.tsv", "premise\thypothesis\tcomment", b"a\tb\t\xff")
    assert read(spec, NO_LABELS) == ([("a", "b", None)], {})


def test_each_line_that_an_open_quote_takes_is_counted(tmp_path):
    lines = [f"a{number},b" for number in range(2, 30)]
    lines[8], lines[20] = '"an open quote,b', 'a "closed" quote,b'
    spec, skips = write(tmp_path / "a.csv", "premise,hypothesis", *lines), Skips(False, SKIPPED)
    pairs = [pair.first for pair in Pairs([spec], NO_LABELS).read(skips)]
    assert pairs == [f"a{number}" for number in (*range(2, 10), *range(23, 30))]
    assert skips.counts["broken_line"] == 13
    assert "a.csv:10: not CSV: " in skips.report()[0]
    assert skips.report()[0].endswith(", lines 10 to 22 are lost")


def test_a_cell_of_parquet_that_python_cannot_hold_costs_no_other_row(tmp_path):
    beyond = pyarrow.array([10**12, 0, 0], pyarrow.int64()).cast(pyarrow.timestamp("s"))
    words = pyarrow.array([["a"], ["b"], [b"\xff"]], pyarrow.list_(pyarrow.binary())).view(
        pyarrow.list_(pyarrow.string())
    )
    table = pyarrow.table({"premise": words, "hypothesis": ["x", "y", "z"], "when": beyond})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read(f"files:{tmp_path}/a.parquet", NO_LABELS) == (
        [("a", "x", None), ("b", "y", None)],
        {"missing_column": 1},
    )


def test_a_null_gives_its_place_to_the_next_column(tmp_path):
    """A table has each column in every row, so one that a row lacks is null there."""
    spec = write(
        tmp_path / "a.jsonl", '{"premise": null, "sentence1": "a", "hypothesis": "b", "label": null, "gold": 1}'
    )
    assert read(spec) == ([("a", "b", "1")], {})


@pytest.mark.parametrize("row", ["a", b"a\t\xff\ty", "a\tb\t-", "\tb\ty"])
def test_strict_stops_with_the_place(tmp_path, row):
    spec = write(tmp_path / "a.tsv", "premise\thypothesis\tlabel", row)
    with pytest.raises(DataError, match=r"a\.tsv:2: .*--strict"):
        read(spec, strict=True)


def test_a_table_without_the_column_is_refused_with_those_it_has(tmp_path):
    spec = write(tmp_path / "a.tsv", "text\thypothesis\tlabel", "a\tb\ty")
    with pytest.raises(
        DataError, match="no column premise or sentence1; name one of text, hypothesis, label with --fir"
    ):
        read(spec)
    spec = write(tmp_path / "b.csv", "premise,hypothesis", "a,b")
    with pytest.raises(DataError, match=r"no column label or gold; .* with --label-key"):
        read(spec)


def test_classes_of_the_hub_have_their_names(monkeypatch):
    classes = datasets.ClassLabel(names=["no", "yes"])
    text = datasets.Value("string")
    features = datasets.Features({"premise": text, "hypothesis": text, "label": classes})
    rows = [{"premise": f"p{label}", "hypothesis": "h", "label": label} for label in (1, 0, -1, None)]
    calls = []

    def load_builder(*args, **kwargs):
        calls.append((args, kwargs))
        return FakeBuilder(datasets.IterableDataset.from_generator(lambda: iter(rows), features=features), calls)

    monkeypatch.setattr(datasets, "load_dataset_builder", load_builder)
    assert read("hub:glue:mnli:validation") == ([("p1", "h", "yes"), ("p0", "h", "no")], {"unknown_label": 2})
    assert calls == [(("glue", "mnli"), {"revision": None}), "validation"]
    with pytest.raises(
        DataError, match="data set glue has no column first; name one of premise, hypothesis, label with"
    ):
        read("hub:glue:mnli", Keys(("first",), ("hypothesis",)))


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_labels_and_groups_of_floats_are_those_of_whole_numbers_in_text_files_too(tmp_path, suffix):
    """1.0 and 1 were two classes, and two groups: pairs of one group were in train and in valid."""
    cells = [("1.0", "7.0"), ("1", "7"), ("-2.0", "7.00"), ("1.5", "v1.0")]
    lines = [("first", "second", "label", "group"), *(("2.0", "3", *both) for both in cells)]
    mark = {"csv": ",", "tsv": "\t"}[suffix]
    (tmp_path / f"a.{suffix}").write_text("".join(mark.join(line) + "\n" for line in lines))
    keys = Keys.named("first", "second", "label", "group")
    pairs = list(Pairs([f"files:{tmp_path}/a.{suffix}"], keys).read(Skips(True, SKIPPED)))
    assert [(pair.label, pair.group) for pair in pairs] == [("1", "7"), ("1", "7"), ("-2", "7.00"), ("1.5", "v1.0")]
    assert {(pair.first, pair.second) for pair in pairs} == {("2.0", "3")}, "texts stay as they are"


def test_a_label_is_the_same_in_a_column_of_floats(tmp_path):
    """As pandas writes a column of whole numbers in which one is missing."""
    for name, labels in {"a": [1, 0], "b": [1.0, None, float("nan"), 0.0, 0.5]}.items():
        rows = [{"premise": "x", "hypothesis": "x", "label": label} for label in labels]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    lines = ('"label": 1', '"label": NaN', '"label": NaN, "gold": 0')
    write(tmp_path / "c.jsonl", *(f'{{"premise": "x", "hypothesis": "x", {line}}}' for line in lines))
    pairs, counts = read(f"files:{tmp_path}/*")
    assert [label for _, _, label in pairs] == ["1", "0", "1", "0", "0.5", "1", "0"]
    assert counts == {"unknown_label": 3}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_two_columns_of_one_name_are_refused(suffix, tmp_path):
    """The last one would count, whichever was meant."""
    names, cells, path = (
        ["premise", "hypothesis", "hypothesis", "", ""],
        ["a", "b", "c", "", ""],
        tmp_path / f"a{suffix}",
    )
    mark = "\t" if suffix == ".tsv" else ","
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([cell]) for cell in cells], names=names), path)
    else:
        write(path, mark.join(names), mark.join(cells))
    with pytest.raises(DataError, match=r"has 2 columns with the name hypothesis; rename"):
        read(f"files:{path}", NO_LABELS)


def test_docstrings_have_no_labels():
    pairs, counts = read("docstrings:json")
    assert all("def " in code and docstring and label is None for docstring, code, label in pairs)
    assert len(pairs) > 3
    assert not counts


@pytest.mark.parametrize("spec", ["", "files:", "hub:", "docstrings:", "docstrings", "python-stdlib", "http://x"])
def test_unknown_sources_are_refused(spec):
    with pytest.raises(DataError, match=r"use files:GLOB, hub:NAME.*docstrings:installed"):
        Pairs([spec], KEYS)


def test_missing_files_and_unknown_formats_are_refused_before_reading(tmp_path):
    with pytest.raises(DataError, match="no file matches"):
        Pairs([f"files:{tmp_path}/*"], KEYS)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"only \.tsv, \.csv, \.jsonl"):
        Pairs([f"files:{tmp_path}/*"], KEYS)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data sets are not on this machine")
@pytest.mark.parametrize(
    ("pattern", "keys", "count"),
    [
        ("mnli/*.tsv", KEYS, 9881 + 4068),
        ("snli/dev.tsv", KEYS, 9842),
        ("cad_nli/*_train.tsv", Keys(KEYS.first, KEYS.second, ("gold_label",)), 8330),
        ("code_functions/functions.jsonl", Keys(("docstring_tokens",), ("code_tokens",)), 1758),
    ],
)
def test_real_files_are_read_whole(pattern, keys, count):
    pairs, counts = read(f"files:{REAL}/{pattern}", keys, strict=True)
    assert len(pairs) == count
    assert not counts
    assert {label for _, _, label in pairs} in ({None}, {"entailment", "neutral", "contradiction"})
    assert not [first for first, _, _ in pairs if '""' in first]
