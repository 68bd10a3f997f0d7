"""Delimited text against Python's own reader of CSV, and the place of every row that is left out."""

import bz2
import csv
import gzip
import io
import lzma

import numpy as np
import pytest
from pyarrow import csv as arrow_csv

from comera_dist.errors import DataError
from data_prep.files.blocks import FAULTS, TextTable, _Rejected
from data_prep.files.skips import Skips


def read(table):
    """Rows of bytes, their places, and the counts of faults."""
    skips, rows, places = Skips(False, FAULTS), [], []
    for block in table.blocks(skips):
        columns = [column.cast("binary").to_pylist() for column in block.columns.values()]
        rows += zip(*columns, strict=True)
        places += [block.place(row) for row in range(block.rows)]
    return rows, places, skips


def write(path, raw):
    path.write_bytes(raw)
    return path


IN_BLOCKS = pytest.mark.parametrize("block_bytes", [1 << 22, 64], ids=["one-block", "many-blocks"])


@IN_BLOCKS
@pytest.mark.parametrize("has_header", [True, False])
def test_rows_and_places_are_those_of_pythons_reader(tmp_path, has_header, block_bytes):
    random = np.random.default_rng(4)
    fields = ["1", "", " a", "b ", '"c,d"', '"e""f"', " ? ", "\u00e9"]
    lines = ["x, y ,z"] * has_header
    for width in random.choice([3, 3, 3, 2, 4], 100):
        lines.append(",".join(random.choice(fields, width)))
    text = "\n".join(lines) + "\n"
    path = write(tmp_path / "a.csv", text.encode())
    reading = {"missing": ("", "?"), "block_bytes": block_bytes}
    table = TextTable.with_header(path, **reading) if has_header else TextTable(path, tuple("xyz"), **reading)
    assert table.columns == ("x", "y", "z")
    rows, places, skips = read(table)
    wanted = [
        (f"{path}: row {number}", tuple(None if f.strip() in ("", "?") else f.strip().encode() for f in row))
        for number, row in enumerate(csv.reader(io.StringIO(text)), start=1)
        if len(row) == 3 and number > has_header
    ]
    assert list(zip(places, rows, strict=True)) == wanted
    assert skips.counts["wrong_fields"] == 100 - len(wanted) > 20
    first = next(n for n, row in enumerate(csv.reader(io.StringIO(text)), start=1) if len(row) != 3)
    assert f"the first at {path}: row {first}: " in skips.report()[0]


def test_tabs_without_quotes_keep_every_byte(tmp_path):
    path = write(tmp_path / "a.tsv", b'"\t \xff\n\t"a\n')
    rows, _, skips = read(TextTable(path, ("a", "b"), delimiter="\t", quoted=False))
    assert rows == [(b'"', b" \xff"), (None, b'"a')]
    assert not any(skips.counts.values())


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_or_not(tmp_path, suffix, compress):
    path = write(tmp_path / f"a.csv{suffix}", compress(b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4"))
    table = TextTable.with_header(path)
    assert (table.columns, read(table)[0]) == (("a", "b"), [(b"1", b"2"), (b"3", b"4")])


@pytest.mark.parametrize(("block_bytes", "row"), [(1 << 22, 32), (64, 31)])
def test_a_quote_that_is_not_closed_is_a_fault_with_a_place(tmp_path, block_bytes, row):
    """What it swallows is a row within one block, and all that is left of a file of many."""
    text = "a,b\n" + "1,2\n" * 30 + '3,"4\n' + "5,6\n" * 30
    path = write(tmp_path / "a.csv", text.encode())
    rows, _, skips = read(TextTable.with_header(path, block_bytes=block_bytes))
    assert rows == [(b"1", b"2")] * 30
    assert skips.counts == {"broken_file": 0, "wrong_fields": 0, "open_quote": 31}
    assert f"a.csv: row {row}: " in skips.report()[0]


@IN_BLOCKS
@pytest.mark.parametrize("opens", ['"3,4,5', '3,"4,5', '3,4,"5'])
@pytest.mark.parametrize("closes", ['6","7,8', '6","7","8"', "6,7,8"])
def test_each_line_that_an_open_quote_takes_is_counted(tmp_path, opens, closes, block_bytes):
    """Whichever field opens it and whether a later one closes it. The empty line is no row."""
    lines = ["1,2,3"] * 30 + ["1,2", "", opens] + ["1,2,3"] * 9 + [closes] + ["1,2,3"] * 30
    path = write(tmp_path / "a.csv", "\n".join(["a,b,c", *lines, ""]).encode())
    rows, _, skips = read(TextTable.with_header(path, block_bytes=block_bytes))
    assert rows == [(b"1", b"2", b"3")] * len(rows)
    assert skips.counts == {"broken_file": 0, "wrong_fields": 1, "open_quote": 71 - len(rows)}
    assert len(rows) <= 60


def test_the_rest_of_a_file_is_counted_as_far_as_it_can_be_read(tmp_path):
    """A quote that takes in the end of a block, in a file that also breaks off."""
    text = b"a,b\n" + b"1,2\n" * 30 + b'3,"4\n' + b"".join(b"%d,%d\n" % (n, n**3) for n in range(9000))
    path = write(tmp_path / "a.csv.gz", gzip.compress(text)[:-2000])
    _, _, skips = read(TextTable.with_header(path, block_bytes=64))
    assert 1000 < skips.counts["open_quote"] < 9001


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_a_file_that_breaks_off_is_counted(tmp_path, compress):
    content = "".join(f"{number},{number**3}\n" for number in range(9000)).encode()
    suffix = {gzip.compress: "gz", lzma.compress: "xz"}[compress]
    path = write(tmp_path / f"a.csv.{suffix}", compress(content)[:-2000])
    rows, _, skips = read(TextTable(path, ("a", "b"), block_bytes=1 << 10))
    assert skips.counts["broken_file"] == 1
    assert f"{path}: row {len(rows)}: after this row the file breaks off" in skips.report()[0]
    assert 0 < len(rows) < 9000
    assert all(int(cube) == int(number) ** 3 for number, cube in rows)


def test_empty_files_and_strict_reading(tmp_path):
    path = write(tmp_path / "a.csv", b"")
    assert read(TextTable(path, ("a", "b")))[2].counts["broken_file"] == 1
    write(path, b"a,b\n1\n")
    with pytest.raises(DataError, match=r"row 2: 1 fields, expected 2 \(wrong_fields\)"):
        list(TextTable.with_header(path).blocks(Skips(True, FAULTS)))


@pytest.mark.parametrize(
    "header", [b"", b"\n", b",\n", b"a,,b\n1,2,3\n", b"a,b,a\n1,2,3\n", b"a,\n", b"a,b\rc\n1,2\n", b"a," + b"b" * 2**10]
)
def test_a_first_row_that_names_no_columns_is_refused(tmp_path, header):
    with pytest.raises(DataError, match=r"does not name its columns.*--columns"):
        TextTable.with_header(write(tmp_path / "a.csv", header))


@IN_BLOCKS
@pytest.mark.parametrize("quoted", [True, False])
def test_a_row_that_is_not_utf8_costs_no_other_row(tmp_path, quoted, block_bytes):
    """Words are bytes: a row of as many fields as there are columns stays as it is, any other is counted."""
    odd = [b"1,caf\xe9", b"\xff\xfe,\x80,2", b"\xc3", b"3,\xe2\x82", b"4,\xe2\x82\xac", b"5,\xf4\x8f\xbf"]
    good = [f"{n},\u20ac{n}".encode() for n in range(40)]
    path = write(tmp_path / "a.csv", b"\n".join([b"a,b", *good, *odd, *good]))
    rows, places, skips = read(TextTable(path, ("a", "b"), has_header=True, quoted=quoted, block_bytes=block_bytes))
    kept = [*good, *(odd[n] for n in (0, 3, 4, 5)), *good]
    assert rows == [tuple(row.split(b",")) for row in kept]
    assert places[40:42] == [f"{path}: row {row}" for row in (42, 45)]
    assert skips.counts == {"broken_file": 0, "wrong_fields": 2, "open_quote": 0}
    assert "row 43: 3 fields, expected 2" in skips.report()[0]


def test_a_header_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.csv holds bytes 0 in its first row, as UTF-16 does; convert it to UTF-8"):
        TextTable.with_header(write(tmp_path / "a.csv", "a,b\n1,2\n".encode("utf-16")))
    damaged = bytearray(gzip.compress(b"a,b\n" + bytes(range(250)) * 9))
    damaged[12:40] = b"\xff" * 28
    with pytest.raises(DataError, match=r"b\.csv\.gz cannot be read \(.*\); copy it again"):
        TextTable.with_header(write(tmp_path / "b.csv.gz", bytes(damaged)))


def test_rows_after_rejected_ones_keep_their_numbers():
    rejected, numbers = _Rejected(), [3, 4, 9]
    for number in numbers:
        rejected(arrow_csv.InvalidRow(2, 1, number, "x"))
    kept = [number for number in range(1, 20) if number not in numbers]
    assert [rejected.skip_over(place) for place in range(1, len(kept) + 1)] == kept
