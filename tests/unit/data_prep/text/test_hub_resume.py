"""A streamed data set of the hub that breaks off is continued: nothing is repeated or skipped, and no byte differs.

The hub's place takes a local folder, which `datasets` streams by the same code.
"""

import json
import os
import random
import signal
import time
from functools import partial
from itertools import count

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from comera_dist.errors import DataError
from data_prep import tokenize_corpus, train_tokenizer
from data_prep.files.hub import HubStream
from data_prep.files.skips import Skips
from data_prep.files.split import SplitRule
from data_prep.text.document_stream import DocumentStream
from data_prep.text.place_file import PlaceFile, StreamPlace
from data_prep.text.sources import SKIPPED, Documents

ROWS, FILES = 240, 3
DIED = 9  # status of a process that was ended by its test


def texts():
    """Documents of odd characters, some of them empty, copies or near copies of earlier ones."""
    rng, found = random.Random(0), []
    for number in range(ROWS):
        words = [f"{rng.randrange(99)} é\u2581\U0001f600\r\n\t"[: rng.randrange(1, 9)] for _ in range(50)]
        text = " ".join([f"text {number}", *words[: rng.randrange(5, 50)]])
        earlier = rng.choice([*found, text])
        found.append(rng.choice([text, text, text, " ", earlier, f"{earlier} end"]))
    return found


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Folders of one data set in each format, in several files; a file of validation text, and a tokenizer."""
    folder, rows = tmp_path_factory.mktemp("hub"), [{"text": text} for text in texts()]
    for number in range(FILES):
        part = rows[number * ROWS // FILES : (number + 1) * ROWS // FILES]
        for kind in ("json", "parquet", "text"):
            (folder / kind).mkdir(exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / "json" / f"train-{number}.jsonl").write_text(lines)
        table = pyarrow.Table.from_pylist(part)
        parquet.write_table(table, folder / "parquet" / f"train-{number}.parquet", row_group_size=11)
        lines = [" ".join(row["text"].split()) + "\n" for row in part]
        (folder / "text" / f"train-{number}.txt").write_text("".join(lines))
    (folder / "held").mkdir()
    (folder / "held/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[10:40]))
    (folder / "extra.txt").write_text("a text of a file\n" * 90)
    source = ["--source", f"files:{folder}/json/*.jsonl", "--vocab-size", "305"]
    train_tokenizer.train([*source, "--output", f"{folder}/tokenizer.model"])
    return folder


@pytest.fixture(autouse=True)
def small_shards(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(tokenize_corpus, "MEGABYTE", 3000)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")


def arguments(material, output, *more):
    settings = ["--tokenizer", f"{material}/tokenizer.model", "--shard-mb", "1", "--workers", "1"]
    return [*settings, "--output", str(output), *more]


CASES = {
    "json": ["--source", "hub:{}/json"],
    "parquet": ["--source", "hub:{}/parquet", "--valid-fraction", "0.3"],
    "text": ["--source", "hub:{}/text"],
    "near copies": ["--source", "hub:{}/json", "--near-duplicates", "0.8"],
    "held out": ["--source", "hub:{}/parquet", "--valid-source", "hub:{}/held", "--near-duplicates", "0.7"],
    "several": ["--source", "files:{}/extra.txt", "--source", "hub:{}/json", "--source", "hub:{}/held"],
    "files last": ["--source", "hub:{}/json", "--source", "files:{}/json/*.jsonl", "--near-duplicates", "0.9"],
}


def case(material, name):
    return [word.format(material) for word in CASES[name]]


def contents(folder):
    """The bytes of a published corpus. A death after its manifest was written leaves .partial too."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".partial" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(material, tmp_path_factory):
    """The bytes of each case's corpus, made without an interruption."""
    made = {}

    def made_once(name):
        if name not in made:
            output = tmp_path_factory.mktemp("whole")
            tokenize_corpus.tokenize(arguments(material, output, *case(material, name)))
            made[name] = contents(output)
        return made[name]

    return made_once


def stream_of(material, name):
    words = dict(zip(case(material, name)[::2], case(material, name)[1::2], strict=True))
    sources = [word for flag, word in zip(*[iter(case(material, name))] * 2, strict=True) if flag == "--source"]
    held = words.get("--valid-source")
    rule = SplitRule(0, 0.0 if held else float(words.get("--valid-fraction", 0.05)), valid=held and Documents([held]))
    similarity = words.get("--near-duplicates")
    skips = Skips(False, SKIPPED)
    return DocumentStream(Documents(sources), rule, skips, ["train", "valid"], similarity and float(similarity)), skips


@pytest.mark.parametrize("name", CASES)
def test_a_stream_goes_on_behind_every_shard(material, name, tmp_path):
    """The oracle is the stream that is read from its beginning. Places are written later, as with several workers."""
    stream, skips = stream_of(material, name)
    file, shards, places = PlaceFile(tmp_path), [], []
    for shard in stream.shards(2000):
        shards.append((shard.split, shard.index, shard.texts))
        places.append(stream.place())
    known = [done for done, place in enumerate(places, start=1) if place]
    assert len(known) > 3
    for done in known:
        file.write(places[done - 1])
        resumed, counted = stream_of(material, name)
        resumed.resume(file.read())
        assert [(shard.split, shard.index, shard.texts) for shard in resumed.shards(2000)] == shards[done:]
        assert (counted.counts, counted.report()) == (skips.counts, skips.report())


def test_a_place_may_name_a_file_whose_name_is_not_text(tmp_path):
    place = StreamPlace({"filling": {}, "skips": "\udcff.txt"}, b"")
    PlaceFile(tmp_path).write(place)
    assert PlaceFile(tmp_path).read().state["skips"] == "\udcff.txt"


def rows_read(monkeypatch, limit=None):
    """A list that grows with every row that `datasets` yields; the row number `limit` is a lost connection."""
    rows, original = [], datasets.IterableDataset.__iter__

    def counted(self):
        for row in original(self):
            if len(rows) == limit:
                raise ConnectionError("the host is silent")
            rows.append(row)
            yield row

    monkeypatch.setattr(datasets.IterableDataset, "__iter__", counted)
    return rows


def cut(words, limit=200):
    """A run that loses its connection."""
    with pytest.MonkeyPatch.context() as patch:
        rows_read(patch, limit)
        with pytest.raises(DataError, match=r"broke off after \d+ rows \(the host is silent\); .* again: it goes on"):
            tokenize_corpus.tokenize(words)


@pytest.mark.parametrize("name", ["json", "parquet", "text", "held out"])
def test_a_lost_connection_ends_in_a_sentence_and_is_continued(material, whole, name, tmp_path, monkeypatch, capsys):
    total = len(list(HubStream(case(material, name)[1].removeprefix("hub:")).table().rows))
    expected, words = whole(name), arguments(material, tmp_path, *case(material, name))
    cut(words, limit=total * 4 // 5)
    records = len(list((tmp_path / ".partial/records").iterdir()))
    rows = rows_read(monkeypatch)
    tokenize_corpus.tokenize(words)
    assert f"{records} finished shards kept" in capsys.readouterr().out
    assert 0 < len(rows) < total // 2, "the rows before the last shard were read again"
    assert contents(tmp_path) == expected


def child(work):
    """The status of a process that does `work`."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def dying(work, operations):
    """Does `work`, and dies before the given number of writes to the disk."""
    numbers = count()

    def counted(original):
        def operation(*arguments, **options):
            if next(numbers) >= operations:
                os._exit(DIED)
            return original(*arguments, **options)

        return operation

    os.replace, os.fsync = counted(os.replace), counted(os.fsync)
    work()


@pytest.mark.parametrize("name", ["json", "held out", "files last"])
@pytest.mark.parametrize("seed", range(2))
def test_deaths_before_any_write_cost_no_byte(material, whole, name, seed, tmp_path):
    expected, words = whole(name), arguments(material, tmp_path, *case(material, name))
    rng = random.Random(seed)
    deaths = 0
    while not ends(child(partial(dying, lambda: tokenize_corpus.tokenize(words), rng.randrange(7, 30)))):
        deaths += 1
    assert deaths > 2
    assert contents(tmp_path) == expected


def ends(pid):
    """Whether the process did its work, and did not die of its writes."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, DIED)
    return status == 0


def test_kills_at_any_moment_cost_no_byte(material, whole, tmp_path):
    name, rng = "near copies", random.Random(3)
    expected, words = whole(name), arguments(material, tmp_path, *case(material, name))
    for pause in (rng.uniform(0.02, 0.5) for _ in range(12)):
        pid = child(lambda: tokenize_corpus.tokenize(words))
        time.sleep(pause)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    tokenize_corpus.tokenize(words)
    assert contents(tmp_path) == expected


@pytest.mark.parametrize("damage", ["place", "sketches", "train/00001.bin", "records/train-00000.json"])
def test_a_damaged_file_lets_the_stream_be_read_again(material, whole, damage, tmp_path, monkeypatch):
    expected, words = whole("near copies"), arguments(material, tmp_path, *case(material, "near copies"))
    cut(words)
    file = tmp_path / ".partial" / damage
    file.write_bytes(file.read_bytes()[:-3])
    rows = rows_read(monkeypatch)
    tokenize_corpus.tokenize(words)
    assert len(rows) == ROWS
    assert contents(tmp_path) == expected


def test_overwriting_reads_the_stream_again(material, whole, tmp_path, monkeypatch):
    words = arguments(material, tmp_path, *case(material, "json"))
    cut(words)
    rows = rows_read(monkeypatch)
    tokenize_corpus.tokenize([*words, "--overwrite"])
    assert len(rows) == ROWS
    assert contents(tmp_path) == whole("json")


def test_strict_stops_at_a_fault_of_the_run_that_is_continued(material, tmp_path):
    words = arguments(material, tmp_path, *case(material, "json"))
    cut(words)
    with pytest.raises(DataError, match=r"json: row \d+: an empty document \(empty\); mend the source"):
        tokenize_corpus.tokenize([*words, "--strict"])


def test_a_data_set_that_has_changed_is_not_continued(material, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in texts()]
    (folder / "train.jsonl").write_text("".join(lines))
    words = arguments(material, tmp_path / "corpus", "--source", f"hub:{folder}")
    cut(words)
    (folder / "train.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match=r"has changed since its first \d+ rows were read; pass --overwrite"):
        tokenize_corpus.tokenize(words)
    tokenize_corpus.tokenize([*words, "--overwrite"])
