"""Criteo's format and CSV files against readers that take one row at a time, and the faults of rows."""

import hashlib
import math
import statistics
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from comera_dist.errors import DataError
from data_prep.clicks.columns import LabelRule
from data_prep.clicks.features import HashedRows, Logarithms, Moments, Standardised, WordCounts, for_each
from data_prep.clicks.generated import CATEGORIES, DENSE
from data_prep.clicks.records import SKIPPED
from data_prep.clicks.sources import open_source
from data_prep.files.skips import Skips

SMALL_BLOCKS = 1 << 10
EVERY_ROW = lambda number_N: np.ones(len(number_N), dtype=bool)  # noqa: E731
SETTINGS = dict.fromkeys(("columns", "dense", "categories", "missing", "hash_rows"), ()) | {
    "join": None, "log": False, "min_count": 1, "label": None,
    "source": None, "valid_source": None, "test_source": None, "dictionaries": None}  # fmt: skip


def read(source, is_train=EVERY_ROW):
    """Rows of (number, label, dense, categories), and the counts of faults."""
    if source.needs_fit:
        source.fit(is_train, Skips(False, SKIPPED), lambda rows: None)
    skips = Skips(False, SKIPPED)
    rows = [
        (
            int(clicks.number_N[n]),
            int(clicks.labels_N[n]),
            clicks.dense_NF[n].tolist(),
            clicks.categories_NC[n].tolist(),
        )
        for clicks in source.clicks(skips)
        for n in range(len(clicks.number_N))
    ]
    return rows, skips


def csv(path, text, **settings):
    path.write_text(text)
    return open_source({**SETTINGS, "label": "y", "source": f"csv:{path}", **settings}, SMALL_BLOCKS)


def criteo(pattern, *hash_rows):
    return open_source({**SETTINGS, "source": f"criteo:{pattern}", "hash_rows": hash_rows}, SMALL_BLOCKS)


@pytest.fixture(scope="module")
def criteo_lines():
    random = np.random.default_rng(3)
    lines = []
    for _ in range(80):
        counts = ["" if random.random() < 0.3 else str(random.integers(-3, 99999)) for _ in DENSE]
        words = ["" if random.random() < 0.2 else f"{random.integers(0, 2**32):08x}" for _ in CATEGORIES]
        lines.append([str(random.integers(0, 2)), *counts, *words])
    return lines


def write_criteo(folder, lines):
    for part in range(2):
        text = "".join("\t".join(line) + "\n" for line in lines[part::2])
        (folder / f"day_{part}.tsv").write_text(text)
    return f"{folder}/day_*.tsv", [*lines[::2], *lines[1::2]]


def test_criteo_row_by_row(tmp_path, criteo_lines):
    pattern, lines = write_criteo(tmp_path, criteo_lines)
    sizes = tuple(range(10, 36))
    source = criteo(pattern, *sizes)
    rows, skips = read(source)
    assert not any(skips.counts.values())
    assert source.facts()["table_rows"] == list(sizes)
    assert [row[0] for row in rows] == list(range(80))
    for (_, label, dense, categories), line in zip(rows, lines, strict=True):
        assert label == int(line[0])
        assert dense == pytest.approx([math.log(max(int(x), 0) + 1) if x else 0 for x in line[1:14]], abs=1e-5)
        wanted = [1 + int(x, 16) % (rows - 1) if x else 0 for x, rows in zip(line[14:], sizes, strict=True)]
        assert categories == wanted


def test_faults_of_criteo_are_counted_with_the_first_place(tmp_path, criteo_lines):
    lines = [list(line) for line in criteo_lines[:20]]
    lines[1][3] = "1.5x"
    lines[2][20] = "0123zz"
    lines[3][20] = "123456789"
    lines[4][0] = "2"
    lines[5][0] = ""
    lines[6] = lines[6][:-1]
    lines[7][3] = lines[7][20] = "-"
    path = tmp_path / "train.txt"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    rows, skips = read(criteo(path, 50))
    found = {kind: count for kind, count in skips.counts.items() if count}
    assert found == {
        "not_a_number": 2, "not_hexadecimal": 2, "bad_label": 1, "missing_label": 1, "wrong_fields": 1}  # fmt: skip
    report = "\n".join(skips.report())
    for part in ("row 2: I3 is '1.5x'", "row 3: C7 is '0123zz'", "row 5: label is '2'", "row 6: label is empty"):
        assert part in report
    assert "row 7: 39 fields, expected 40" in report
    good = [line for number, line in enumerate(lines) if number not in range(1, 8)]
    assert [row[3][6] for row in rows] == [1 + int(line[20], 16) % 49 if line[20] else 0 for line in good]
    with pytest.raises(DataError, match=r"row 2: I3 is '1.5x' .not_a_number.; .*without --strict"):
        list(criteo(path, 50).clicks(Skips(True, SKIPPED)))


def test_a_fault_does_not_change_how_its_neighbours_are_read(tmp_path):
    """One number that cannot be read sends its block another way."""
    numbers = ["1", "-2.5", "1e3", "+4", ".5", "6.", "", "0012", "1e-400", "1e-3"]
    text = "y,x,c\n" + "".join(f"{n % 2},{x},w{n}\n" for n, x in enumerate(numbers))
    alone, _ = read(csv(tmp_path / "a.csv", text, dense=("x",), categories=("c",), log=True))
    bad = "".join(f"0,{x},w0\n" for x in ("nan", "inf", "1e400", "-3.5e38", "1_0", "0x1", "1,5", "--1"))
    beside, skips = read(csv(tmp_path / "b.csv", text + bad, dense=("x",), categories=("c",), log=True))
    assert beside == alone
    assert (skips.counts["not_a_number"], skips.counts["wrong_fields"]) == (7, 1)
    assert [row[2][0] for row in alone] == pytest.approx([math.log1p(max(float(x or 0), 0)) for x in numbers])


def test_dictionaries_and_moments_are_of_train_alone(tmp_path):
    random = np.random.default_rng(5)
    lines = [(n % 3 == 0, random.normal(50, 9), "abcdefgh"[random.geometric(0.4) % 8]) for n in range(300)]
    text = "y,x,c\n" + "".join(
        f"{int(y)},{x if n % 7 else ''},{c if n % 11 else ''}\n" for n, (y, x, c) in enumerate(lines)
    )
    source = csv(tmp_path / "a.csv", text + "0,,rare\n0,5,unseen\n", dense=("x",), categories=("c",), min_count=9)
    rows, _ = read(source, is_train=lambda number_N: number_N % 2 == 0)
    train = [line for n, line in enumerate(lines) if n % 2 == 0 and n % 7]
    mean, deviation = statistics.fmean(x for _, x, _ in train), statistics.pstdev(x for _, x, _ in train)
    counts = Counter(c for n, (_, _, c) in enumerate(lines) if n % 2 == 0 and n % 11)
    words = sorted((c for c in counts if counts[c] >= 9), key=lambda c: (-counts[c], c))
    assert 2 < len(words) < len(counts)
    assert source.words() == {"c": words}
    facts = source.facts()
    assert facts["table_rows"] == [1 + len(words)]
    assert facts["dense"][0]["mean"] == pytest.approx(mean)
    for (number, label, dense, categories), (y, x, c) in zip(rows, lines, strict=False):
        assert label == y
        assert dense[0] == pytest.approx((x - mean) / deviation if number % 7 else 0, abs=1e-4)
        assert categories == [words.index(c) + 1 if c in words and number % 11 else 0]
    assert [row[3] for row in rows[300:]] == [[0], [0]]


def test_moments_do_not_depend_on_blocks_and_survive_a_large_mean():
    random = np.random.default_rng(6)
    dense_NF = random.normal([1e8, 0, 3], [1, 5, 0], (1000, 3))
    dense_NF[random.random((1000, 3)) < 0.2] = np.nan
    whole, parts = Moments(3), Moments(3)
    whole.fit(dense_NF)
    for part in np.split(dense_NF, [1, 1, 30, 700]):
        parts.fit(part)
    for fitted in (whole, parts):
        moments = [(entry["mean"], entry["deviation"]) for entry in fitted.learned().facts()]
        wanted = list(zip(np.nanmean(dense_NF, 0), [*np.nanstd(dense_NF, 0)[:2], 1.0], strict=True))
        np.testing.assert_allclose(moments, wanted, rtol=1e-9, atol=1e-9)
    assert np.isfinite(Moments(2).learned().encode(np.full((1, 2), np.nan))).all()


@pytest.mark.parametrize("number", [0.1, 3.3, 1e9 + 0.3])
def test_a_constant_has_no_deviation_that_another_number_is_measured_by(number):
    """The mean of many 0.1 is not 0.1 in floats. A deviation of 1e-17 made a held-out 1.1 a number of 7e16."""
    moments = Moments(1)
    for rows in (1000, 1001, 0, 1002):
        moments.fit(np.full((rows, 1), number))
    encoded = moments.learned().encode(np.array([[number], [number + 1], [np.nan]]))
    assert encoded[:, 0] == pytest.approx([0, 1, 0], abs=1e-6)


def test_a_number_too_large_for_a_model_spoils_no_moments(tmp_path):
    """A float64 may hold it: its square, or its float32, would be infinite."""
    text = "y,x,c\n" + "".join(f"{n % 2},{n},w\n" for n in range(9))
    plain, beside = (csv(tmp_path / "a.csv", text, dense=("x",), categories=("c",)) for _ in range(2))
    rows, _ = read(plain)
    (tmp_path / "a.csv").write_text(f"{text}1,{np.finfo(np.float64).max},w\n")
    assert read(beside)[0] == rows
    assert beside.facts() == plain.facts()
    with pytest.raises(DataError, match=r"row 11: x is '1\.797.*not_a_number"):
        list(beside.clicks(Skips(True, SKIPPED)))


def test_a_number_too_large_for_earlier_moments_is_refused():
    earlier = Standardised(np.array([0.0, 1.0]), np.array([1.0, 1e-3]))
    assert np.isfinite(earlier.encode(np.array([[3e38, np.nan], [-3e38, 1e35]]))).all()
    with pytest.raises(DataError, match=r"number -3e\+37 is 3e\+40 standard deviations .*; remove its row"):
        earlier.encode(np.array([[0, 1], [0, -3e37]]))


def test_hashed_words_are_a_stable_function_of_their_bytes():
    words = pa.array([b"a", None, b"", b"a", "\u00e9".encode(), b"\xff"])
    hashed = [int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "big") for word in (b"a", b"", b"\xff")]
    rows_N = HashedRows(1000).encode(words)
    assert rows_N[[0, 2, 5]].tolist() == [1 + value % 999 for value in hashed]
    assert (rows_N[1], rows_N[3]) == (0, rows_N[0])
    assert HashedRows(1000).encode(words[4:]).tolist() == rows_N[4:].tolist()
    assert set(HashedRows(2).encode(words).tolist()) == {0, 1}
    large = HashedRows(2**31 - 1).encode(pa.array([0, 2**32 - 1, None], type=pa.uint32()))
    assert large.tolist() == [1, 1 + (2**32 - 1) % (2**31 - 2), 0]


def test_blocks_of_missing_words_and_no_numbers():
    dictionary = WordCounts(1)
    dictionary.fit(pa.array([None, None], type=pa.binary()))
    dictionary = dictionary.learned()
    assert (dictionary.rows, dictionary.encode(pa.array([None, b"x"])).tolist()) == (1, [0, 0])
    assert Logarithms(0).encode(np.empty((3, 0))).shape == (3, 0)
    assert Moments(0).learned().encode(np.empty((3, 0))).shape == (3, 0)


@pytest.mark.parametrize(
    ("spec", "words", "labels"),
    [
        ("y", ["0", "1", "1.0", "0.0"], [0, 1, 1, 0]),
        ("y=>50K", [">50K", "<=50K", ">50K.", " >50K"], [1, 0, 0, 1]),
        ("y=a=b", ["a=b", "a", "b", "A=B"], [1, 0, 0, 0]),
        ("y=>50K|>50K.", [">50K", "<=50K", ">50K.", "<=50K."], [1, 0, 1, 0]),
        ("y>=4", ["4", "3.99", "4.5", "-5"], [1, 0, 1, 0]),
    ],
)
def test_label_rules(tmp_path, spec, words, labels):
    text = "y,c\n" + "".join(f"{word},w\n" for word in words)
    rows, skips = read(csv(tmp_path / "a.csv", text, label=spec, categories=("c",)))
    assert ([row[1] for row in rows], sum(skips.counts.values())) == (labels, 0)


@pytest.mark.parametrize(("spec", "bad"), [("y", "2"), ("y", "yes"), ("y>=4", "four"), ("y>=4", "nan")])
def test_labels_that_are_none_are_counted(tmp_path, spec, bad):
    rows, skips = read(csv(tmp_path / "a.csv", f"y,c\n1,a\n{bad},a\n,a\n", label=spec, categories=("c",)))
    assert (len(rows), skips.counts["bad_label"], skips.counts["missing_label"]) == (1, 1, 1)


@pytest.mark.parametrize("spec", ["", "=x", "y>4", "y>=four", "y<=4"])
def test_label_rules_that_are_not_understood(spec):
    with pytest.raises(DataError, match="COLUMN>=NUMBER"):
        LabelRule.parse(spec)


def test_a_joined_table_and_parts_of_a_time(tmp_path):
    (tmp_path / "films.csv").write_text('film,title,genre\n1,"One, the",g\n2,Two,h\n2,Again,i\n4,Four,\n,None,k\n')
    text = "user,film,y,at\nu,1,1,0\nu,2,0,86399\nv,3,1,1700000000\nv,,1,\nv,4,0,now\n"
    names = ("title", "genre", "at.hour", "at.weekday")
    source = csv(tmp_path / "r.csv", text, categories=names, join=f"{tmp_path}/films.csv:film")
    rows, skips = read(source)
    words = [["", *source.words()[name]] for name in names]
    read_back = [tuple(words[c][row] for c, row in enumerate(row[3])) for row in rows]
    # Thursday midnight; the second before the next; 22:13 on Tuesday, 14 November 2023.
    assert read_back == [
        ("One, the", "g", "0", "3"), ("Two", "h", "23", "3"), ("", "", "22", "1"), ("", "", "", "")]  # fmt: skip
    assert skips.counts["not_a_number"] == 1
    option = f"--join {tmp_path}/films.csv:film"
    assert source.notes == [
        f"{option}: 2 of 5 rows found no key",
        f"{option}: 1 of 5 rows of the file repeat a key; the first counts",
    ]


def test_a_joined_table_is_one_for_all_sources(tmp_path):
    """Its faults count once, and the rows of all sources are counted together."""
    (tmp_path / "films.csv").write_text("film,genre\n1,g\n2\n3,h\n")
    (tmp_path / "test.csv").write_text("film,y\n9,1\n")
    more = {"join": f"{tmp_path}/films.csv:film", "test_source": f"csv:{tmp_path}/test.csv"}
    source = csv(tmp_path / "r.csv", "film,y\n1,1\n2,0\n3,1\n", categories=("genre",), **more)
    rows, skips = read(source)
    assert [row[3] for row in rows] == [[1], [0], [2], [0]]
    assert {kind: count for kind, count in skips.counts.items() if count} == {"wrong_fields": 1}
    assert source.notes == [f"--join {tmp_path}/films.csv:film: 2 of 4 rows found no key"]


def test_missing_words_that_are_named(tmp_path):
    text = "y,x,c\n1,?,?\n0, NA ,b\n1,2,NA\n"
    source = csv(tmp_path / "a.csv", text, dense=("x",), categories=("c",), missing=("?", "NA"), log=True)
    rows, skips = read(source)
    assert [(row[2][0], row[3][0]) for row in rows] == [(0, 0), (0, 1), (pytest.approx(math.log(3)), 0)]
    assert not any(skips.counts.values())
    _, skips = read(csv(tmp_path / "a.csv", text, dense=("x",), categories=("c",), log=True))
    assert skips.counts["not_a_number"] == 2


def test_columns_may_be_named_where_there_is_no_header(tmp_path):
    rows, _ = read(csv(tmp_path / "a.csv", "1, w\n0, v\n", columns=("y", "c"), categories=("c",)))
    assert [(row[1], row[3]) for row in rows] == [(1, [2]), (0, [1])]


MISTAKES = {
    "no column 'z'; name some of at, c, x, y": {"categories": ("z",)},
    "no column 'c.minute'": {"categories": ("c.minute",)},
    "no column 'at.hour'; name": {"label": "at.hour>=4", "categories": ("c",)},
    "first row of .*bad.csv is .* write a row of names above it": {"categories": ("c",), "join": "BAD:c"},
    "rename the others in one of the files": {"categories": ("c",), "join": "BOTH:c"},
    "no column 'q'": {"label": "q=1", "categories": ("c",)},
    "at least one categorical feature": {"dense": ("x",)},
    "c is used twice": {"categories": ("c", "c")},
    "y is used twice": {"dense": ("y",), "categories": ("c",)},
    "3 tables and there are 2": {"categories": ("c", "at"), "hash_rows": (5, 6, 7)},
    "names no key; write FILE:COLUMN": {"categories": ("c",), "join": "a.csv"},
    "no file matches .*none": {"categories": ("c",), "join": "none:c"},
    "in common the columns at, c, x, y": {"categories": ("c",), "join": "SELF:c"},
    "has no row to join": {"categories": ("c",), "join": "EMPTY:c"},
    "matches 2 files, .*bad.csv and others; name one": {"categories": ("c",), "join": "SEVERAL:c"},
    "none of 1 rows found its 'c' in .*other.csv; name a file": {"categories": ("c",), "join": "OTHER:c"},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_in_naming_columns(tmp_path, message):
    tables = {"empty": "c,d\n", "bad": "c,,d\n1,2,3\n", "both": "c,x\nw,1\n", "other": "c,d\nv,1\n,2\n"}
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
    settings = dict(MISTAKES[message])
    for name in ("self", "several", *tables):
        if "join" in settings:
            file = {"self": "a", "several": "b*"}.get(name, name)
            settings["join"] = settings["join"].replace(name.upper(), f"{tmp_path}/{file}.csv")
    with pytest.raises(DataError, match=message):
        read(csv(tmp_path / "a.csv", "y,x,c,at\n1,2,w,0\n", **settings))


def test_one_size_is_for_every_table():
    assert for_each((9,), 2) == (9, 9)
    assert for_each((), 2) == ()


TIMES = {
    "0": 0,
    "1700000000.5": 1700000000.5,
    "1970-01-01": 0,
    "2023-11-14 22:13:20": 1700000000,
    "2023-11-14T22:13:20.123456789Z": 1700000000.123456,
    "2023-11-14T23:13+01:00": 1699999980,
    "1969-12-31T23:59:59": -1,
}


@pytest.mark.parametrize("beside", ["", "2023-02-30", "2023-11-14 25:00"], ids=["good", "no day", "no hour"])
def test_times_are_unix_or_iso_and_parts_of_them_numbers_or_words(tmp_path, beside):
    """A fault in a block does not change how its neighbours are read."""
    text = "y,at\n" + "".join(f"1,{word}\n" for word in [*TIMES, beside] if word)
    source = csv(tmp_path / "a.csv", text, dense=("at.seconds", "at.weekday"), categories=("at.hour",), log=True)
    rows, skips = read(source)
    hours = ["", *source.words()["at.hour"]]
    assert [hours[row[3][0]] for row in rows] == ["0", "22", "0", "22", "22", "22", "23"]
    assert [row[2][0] for row in rows] == pytest.approx([math.log1p(max(0, x)) for x in TIMES.values()], rel=1e-6)
    assert [math.expm1(row[2][1]) for row in rows] == pytest.approx([3, 1, 3, 1, 1, 1, 2], rel=1e-5)
    assert skips.counts["not_a_number"] == bool(beside)


def test_hours_of_milliseconds_are_a_fault_and_their_number_is_none(tmp_path):
    """1700000000000 seconds are in the year 55,840, whose hours say nothing. As a number they are only scaled."""
    text = "y,at\n1,1700000000\n0,1700000000000\n1,-1700000000000\n"
    rows, skips = read(csv(tmp_path / "a.csv", text, dense=("at.weekday",), categories=("at.hour",)))
    assert (len(rows), skips.counts["not_a_number"]) == (1, 2)
    assert "row 3: at is '1700000000000', beyond the year 9999 in seconds: divide" in skips.report()[0]
    rows, skips = read(csv(tmp_path / "a.csv", text, dense=("at",), categories=("at.seconds",)))
    assert (len(rows), skips.report()) == (3, [])


def test_a_time_among_numbers_is_a_fault_that_names_the_way(tmp_path):
    text = "y,x,c\n1,2023-11-14,w\n0,2,w\n"
    rows, skips = read(csv(tmp_path / "a.csv", text, dense=("x",), categories=("c",)))
    assert len(rows) == 1
    assert "row 2: x is '2023-11-14', a time: name x.seconds instead" in skips.report()[0]


def test_an_index_without_a_name_is_left_out_with_a_word(tmp_path):
    text = "y,c\n" + "".join(f"{n % 2},w{n}\n" for n in range(9))
    with_index = "".join(f"{'' if n == 0 else n},{line}\n" for n, line in enumerate(text.splitlines()))
    plain, indexed = (csv(tmp_path / name, content, categories=("c",)) for name, content in
                      (("a.csv", text), ("b.csv", with_index)))  # fmt: skip
    assert read(indexed)[0] == read(plain)[0]
    assert (plain.notes, indexed.notes) == ([], [f"{tmp_path}/b.csv: the first column has no name and is left out"])
    (tmp_path / "films.csv").write_text(",c,genre\n0,w1,g\n1,w2,h\n")
    joined = csv(tmp_path / "b.csv", with_index, categories=("genre",), join=f"{tmp_path}/films.csv:c")
    read(joined)
    assert joined.notes == [*indexed.notes, f"--join {tmp_path}/films.csv:c: 7 of 9 rows found no key"]
    assert joined.words() == {"genre": ["g", "h"]}
