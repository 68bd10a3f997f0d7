"""A kind of source is one class and its place among the kinds: here from outside of the package."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from comera_dist.errors import DataError
from data_prep.answers.sources import Dialogues
from data_prep.answers.sources import Keys as AnswerKeys
from data_prep.clicks.sources import KINDS, open_source
from data_prep.files.skips import Skips
from data_prep.files.split import SplitRule, split_items
from data_prep.pairs.sources import SKIPPED, Keys, Pair, Pairs
from data_prep.prepare_clicks import parse_arguments
from data_prep.text.sources import Document, Documents


class Numbers:
    usage = "numbers:COUNT"

    def __init__(self, count, *settings):
        self.count = int(count)

    def read(self, skips):
        return (self.item(f"number {number}", str(number)) for number in range(self.count))


class NumberTexts(Numbers):
    item = Document


class NumberPairs(Numbers):
    def item(self, where, word):
        return Pair(where, word, " " if word == "2" else word * 2)


class MoreDocuments(Documents):
    kinds = (*Documents.kinds, NumberTexts)


class MorePairs(Pairs):
    kinds = (*Pairs.kinds, NumberPairs)


def test_a_kind_of_text_and_of_pairs_from_outside():
    skips = Skips(False, SKIPPED)
    assert [document.words for document in MoreDocuments(["numbers:3", "numbers:1"]).read(skips)] == [*"012", "0"]
    assert [pair.second for pair in MorePairs(["numbers:4"], Keys(("a",), ("b",))).read(skips)] == ["00", "11", "33"]
    assert skips.report() == ["skipped 1 empty, the first at number 2: an empty text"]
    with pytest.raises(DataError, match=r"use python-stdlib, files:GLOB, hub:\S+ or numbers:COUNT"):
        MoreDocuments(["numbers:"])


def test_a_source_from_outside_is_split_as_all_are():
    rule = SplitRule(seed=0, valid=MoreDocuments(["numbers:2"]))
    found = split_items(MoreDocuments(["numbers:4"]), rule, Skips(True, ()))
    assert [(split, document.words) for split, document in found] == [
        *[("valid", "0"), ("valid", "1"), ("train", "2"), ("train", "3")]
    ]


def test_a_kind_of_click_log_from_outside():
    class Coins:
        usage = "coins:ROWS"
        reads_files = names_columns = False

        @classmethod
        def open(cls, rows, settings, block_bytes):
            return f"{rows} coins"

    settings = {**vars(parse_arguments(["--source", "coins:5", "--output", "x"]))}
    assert open_source(settings, kinds=(*KINDS, Coins)) == "5 coins"
    with pytest.raises(DataError, match="--test-source is for files; remove it, a coins source splits its rows"):
        open_source({**settings, "test_source": "csv:x"}, kinds=(*KINDS, Coins))


@pytest.mark.parametrize(
    ("sources", "settings"), [(Documents, []), (Pairs, [Keys(("a",), ("b",))]), (Dialogues, [AnswerKeys()])]
)
def test_a_link_that_leads_nowhere_is_a_broken_file(tmp_path, sources, settings):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "nothing")
    skips = Skips(False, ())
    assert list(sources([f"files:{tmp_path}/*"], *settings).read(skips)) == []
    assert skips.counts == {"broken_file": 1}
    with pytest.raises(DataError, match="No such file or directory"):
        list(sources([f"files:{tmp_path}/*"], *settings).read(Skips(True, ())))


@pytest.mark.parametrize(
    ("sources", "settings"), [(Pairs, [Keys(("a",), ("b",))]), (Dialogues, [AnswerKeys("a", "b")])]
)
def test_a_row_counts_once_whoever_names_its_file(tmp_path, sources, settings):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"a": name, "b": "x"}))
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "a.jsonl")
    found = sources([f"files:{tmp_path}/[bc]*", f"files:{tmp_path}/*"], *settings)
    assert [item.where for item in found.read(Skips(True, ()))] == [f"{tmp_path}/b.jsonl:1", f"{tmp_path}/c.jsonl:1"]
    with pytest.raises(DataError, match=r"\*' is named twice; name it once"):
        sources([f"files:{tmp_path}/*"] * 2, *settings)


def test_a_file_of_clicks_is_read_once(tmp_path):
    (tmp_path / "a.csv").write_text("y,c\n1,a\n")
    (tmp_path / "b.csv").symlink_to(tmp_path / "a.csv")
    columns = ["--label", "y", "--categories", "c", "--output", "x"]
    settings = vars(parse_arguments(["--source", f"csv:{tmp_path}/*", *columns]))
    (clicks,) = open_source({**settings, "hash_rows": (8,)}).clicks(Skips(True, ()))
    assert clicks.labels_N.tolist() == [1]
    spec = f"csv:{tmp_path}/a.csv"
    with pytest.raises(DataError, match=r"a\.csv' is named twice"):
        open_source({**settings, "valid_source": spec, "test_source": spec})


def test_pairs_of_parquet(tmp_path):
    """Bytes that are not UTF-8 cost their own row alone, and only where the cell is read."""
    broken = pyarrow.array([b"\xff", b"one", b"two"]).view(pyarrow.string())
    table = pyarrow.table({"first": broken, "second": ["x", "y", None], "other": broken})
    parquet.write_table(table, tmp_path / "a.parquet")
    skips = Skips(False, SKIPPED)
    pairs = Pairs([f"files:{tmp_path}/*"], Keys(("first",), ("second",)))
    assert list(pairs.read(skips)) == [Pair(f"{tmp_path}/a.parquet: row 2", "one", "y")]
    assert {kind: count for kind, count in skips.counts.items() if count} == {"bad_encoding": 1, "missing_column": 1}
    with pytest.raises(DataError, match="no column text; name one of first, second, other with --first-key"):
        list(Pairs([f"files:{tmp_path}/*"], Keys(("text",), ("second",))).read(skips))
