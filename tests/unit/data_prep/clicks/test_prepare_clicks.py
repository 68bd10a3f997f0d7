"""prepare_clicks.py: every row once, in a split that does not change, and mistakes in one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from comera_dist.config.data_section import Data
from comera_dist.data.clicks import ClickCorpus, ClickExamples
from comera_dist.errors import DataError
from data_prep import command, prepare_clicks
from data_prep.files.skips import Skips
from data_prep.scoring.clicks import ClickRows

ROOT = Path(__file__).parents[4]
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture
def table(tmp_path):
    """300 rows whose word names the row, one of which has too few fields."""
    lines = [f"{n % 3 % 2},{n / 10},w{n},{'ab'[n % 2]}" for n in range(300)]
    lines.insert(7, "1,2")
    (tmp_path / "a.csv").write_text("y,x,id,c\n" + "\n".join(lines))
    return tmp_path / "a.csv"


def prepare(table, output, *more, **settings):
    usual = {"--source": f"csv:{table}", "--label": "y", "--dense": "x", "--categories": "id,c"}
    common = [word for option, value in usual.items() if option not in more for word in (option, value)]
    prepare_clicks.prepare([*common, "--output", str(output), *map(str, more)], **settings)
    return ClickCorpus(output)


def rows_of(corpus, split):
    """Number of each row, by its word; and its columns."""
    words = ["", *json.loads((corpus.path / "words.json").read_text())["id"]]
    columns = corpus.split(split)
    return [words[row] for row in columns["categories"][:, 0]], columns


def test_every_row_is_in_one_split_with_its_own_columns(table, tmp_path):
    corpus = prepare(table, tmp_path / "set", "--test-fraction", 0.2, "--valid-fraction", 0.1)
    assert list(corpus.manifest["splits"]) == ["train", "valid", "test"]
    train, columns = rows_of(corpus, "train")
    assert train == sorted(train, key=lambda word: int(word[1:]))
    mean, deviation = corpus.manifest["dense"][0]["mean"], corpus.manifest["dense"][0]["deviation"]
    for n, word in enumerate(train):
        number = int(word[1:])
        assert columns["labels"][n] == number % 3 % 2
        assert columns["dense"][n] == pytest.approx((number / 10 - mean) / deviation, abs=1e-4)
    sizes = {name: len(corpus.split(name)["labels"]) for name in ("train", "valid", "test")}
    assert sum(sizes.values()) == 300
    assert 10 < sizes["valid"] < 55
    assert 35 < sizes["test"] < 90
    for name in ("valid", "test"):
        assert not corpus.split(name)["categories"][:, 0].any()  # words that train has not got
        assert corpus.split(name)["categories"][:, 1].all()
    assert corpus.manifest["positives"]["train"] == columns["labels"].sum()
    assert corpus.manifest["skipped"]["wrong_fields"] == 1
    assert corpus.table_rows == (1 + sizes["train"], 3)


def test_blocks_decide_nothing_and_a_seed_the_splits(table, tmp_path):
    """Moments are left out: they are sums over blocks, which round in another order."""
    whole = prepare(table, tmp_path / "a", "--log")
    assert prepare(table, tmp_path / "b", "--log", block_bytes=256).manifest == whole.manifest
    other = prepare(table, tmp_path / "c", "--log", "--seed", 1)
    assert rows_of(other, "train")[0] != rows_of(whole, "train")[0]


def test_no_numbers_and_no_held_out_split(table, tmp_path):
    common = ["--source", f"csv:{table}", "--label", "y", "--categories", "c", "--valid-fraction", "0"]
    prepare_clicks.prepare([*common, "--hash-rows", "5", "--output", str(tmp_path / "set")])
    corpus = ClickCorpus(tmp_path / "set")
    assert (corpus.dense_features, corpus.table_rows, list(corpus.manifest["splits"])) == (0, (5,), ["train"])
    batch = ClickExamples(corpus, "train").batch(np.arange(300), np.arange(300))
    assert batch.dense_BF.shape == (300, 0)
    assert batch.targets_B.sum() == 100


@pytest.mark.parametrize(
    "again",
    [
        ["--source=csv:b.csv"],
        ["--dense=x"],
        ["--categories=c"],
        ["--valid-source", "csv:c.csv", "--valid-source", "csv:d.csv"],
    ],
)
def test_a_repeated_option_is_refused_as_the_last_one_would_leave_data_out(table, tmp_path, capsys, again):
    with pytest.raises(SystemExit, match="2"):
        prepare(table, tmp_path / "out", *again)
    assert "it is given twice, and only the last one would count; give it once" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_second_run_does_nothing_and_other_settings_are_refused(table, tmp_path, capsys):
    first = prepare(table, tmp_path / "set")
    capsys.readouterr()
    before = (tmp_path / "set" / "manifest.json").stat().st_mtime_ns
    prepare(table, tmp_path / "set")
    assert "nothing to do" in capsys.readouterr().out
    assert (tmp_path / "set" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"--overwrite"):
        prepare(table, tmp_path / "set", "--hash-rows", "9")
    other = prepare(table, tmp_path / "set", "--hash-rows", "9", "--overwrite")
    assert (other.table_rows, other.fingerprint == first.fingerprint) == ((9, 9), False)
    assert json.loads((tmp_path / "set" / "words.json").read_text()) == {}


def test_strict_is_asked_again_of_a_finished_data_set(table, tmp_path, capsys):
    prepare(table, tmp_path / "set")
    with pytest.raises(DataError, match=r"made without --strict .* \(1 wrong_fields\); .* --overwrite"):
        prepare(table, tmp_path / "set", "--strict")
    table.write_text(table.read_text().replace("1,2\n", ""))
    prepare(table, tmp_path / "set", "--strict", "--overwrite")
    prepare(table, tmp_path / "set", "--strict")
    assert "nothing to do" in capsys.readouterr().out


def test_the_report_says_what_there_is(table, tmp_path, capsys):
    corpus = prepare(table, tmp_path / "set")
    skipped, train, valid, tables, unknown, last = capsys.readouterr().out.splitlines()
    assert skipped.startswith("skipped 1 wrong_fields, the first at")
    assert ": row 9: 2 fields, expected 4" in skipped
    assert train.startswith(f"train: {len(corpus.split('train')['labels'])} rows, ")
    assert valid.endswith("% clicked")
    assert f"id {corpus.table_rows[0]}, c 3" in tables
    assert unknown.startswith("no row of valid has a word of id that train has, so")
    assert last.endswith(corpus.fingerprint[:12])


def test_held_out_words_and_words_to_score_in_another_spelling_are_named(tmp_path, capsys):
    """pandas writes whole numbers of which one is missing with a point. A table without words has none to find."""
    (tmp_path / "train.csv").write_text("y,a,b,c\n" + "".join(f"{n % 2},{n % 3}.0,{n % 4},\n" for n in range(30)))
    (tmp_path / "valid.csv").write_text("y,a,b,c\n" + "".join(f"{n % 2},{n % 3},{n % 4},\n" for n in range(10)))
    common = [f"--source=csv:{tmp_path}/train.csv", "--label=y", "--categories=a,b,c", f"--output={tmp_path}/set"]
    prepare_clicks.prepare([*common, f"--valid-source=csv:{tmp_path}/valid.csv"])
    said = "no row of {} has a word of a that train has, so the model takes all for missing ones; see that both spell"
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("no row"))
    assert line.startswith(said.format("valid"))
    for name, lines in (("train", 0), ("valid", 1)):
        path = tmp_path / f"{name}.csv"
        rows = ClickRows(path, Data(corpus=tmp_path / "set"), Skips(True, ()))
        assert sum(len(batch.numbers) for batch in rows.batches(7)) > 0
        assert [line.startswith(said.format(path)) for line in rows.notes()] == [True] * lines
    prepare_clicks.prepare([*common, f"--valid-source=csv:{tmp_path}/valid.csv", "--hash-rows=5", "--overwrite"])
    assert "no row" not in capsys.readouterr().out  # a hash knows all words


@pytest.fixture
def files(tmp_path):
    """Train and test with words and numbers of their own, some no UTF-8; label 1 is spelt in two ways."""
    for name, count, yes in (("train", 200, b"yes"), ("test", 40, b"yes.")):
        rows = [b"%s,%d,w%d,\xff%d" % ((b"no", yes)[n % 2], n * count, n % 30 + count % 7, n % 3) for n in range(count)]
        (tmp_path / f"{name}.csv").write_bytes(b"y,x,id,c\n" + b"\n".join(rows))
    return tmp_path


COLUMNS = ["--label", "y=yes|yes."]
NAMED = ["--dense", "x", "--categories", "id,c"]
FEATURES = [*NAMED, "--min-count", "6"]


def run(output, *arguments):
    prepare_clicks.prepare([*COLUMNS, *map(str, arguments), "--output", str(output)])
    return ClickCorpus(output)


def columns_of(corpus, split):
    return {name: np.asarray(column).tolist() for name, column in corpus.split(split).items()}


@pytest.mark.parametrize(
    "features",
    [FEATURES, [*FEATURES, "--log"], [*NAMED, "--hash-rows", "9"]],
    ids=["moments", "log", "hashed"],
)
def test_test_files_are_encoded_as_train_at_once_or_later(files, features):
    """The official split of a data set: with its own source, or prepared later with the earlier dictionaries."""
    train, test = (f"csv:{files}/{name}.csv" for name in ("train", "test"))
    both = run(files / "both", "--source", train, "--test-source", test, *features)
    assert list(both.manifest["splits"]) == ["train", "valid", "test"]
    assert both.manifest["positives"]["test"] == len(both.split("test")["labels"]) / 2 == 20
    alone = run(files / "alone", "--source", train, *features)
    assert columns_of(alone, "train") == columns_of(both, "train")
    later = run(files / "later", "--test-source", test, "--dictionaries", files / "alone")
    assert list(later.manifest["splits"]) == ["test"]
    assert columns_of(later, "test") == columns_of(both, "test")
    for key in ("dense", "categories", "table_rows"):
        assert later.manifest[key] == alone.manifest[key] == both.manifest[key]
    for name in ("later", "both"):
        assert (files / name / "words.json").read_bytes() == (files / "alone" / "words.json").read_bytes()
    assert later.manifest["parameters"]["dictionaries"] == alone.fingerprint


def encode_as_earlier(table, folder, moment):
    """Prepares the rows again with the dictionaries of a data set whose manifest has another `moment`."""
    manifest = prepare(table, folder / "earlier").manifest
    manifest["dense"][0] |= moment
    (folder / "earlier" / "manifest.json").write_text(json.dumps(manifest))
    more = [f"--dictionaries={folder}/earlier", f"--output={folder}/set"]
    prepare_clicks.prepare([f"--test-source=csv:{table}", "--label=y", *more])


@pytest.mark.parametrize("moment", [{"mean": float("inf")}, {"mean": float("nan")}, {"deviation": 0.0}])
def test_moments_that_no_numbers_have_are_damage(table, tmp_path, moment):
    """Python reads Infinity and NaN in JSON. Numbers would become 0, or their row would be blamed."""
    found = "damaged: x has the mean .* and the deviation .*, expected finite numbers and a .*; copy the data set again"
    with pytest.raises(DataError, match=found):
        encode_as_earlier(table, tmp_path, moment)


def test_a_moment_beyond_all_floats_is_no_traceback(table, tmp_path):
    with pytest.raises(DataError, match="does not say how the numbers"):
        encode_as_earlier(table, tmp_path, {"mean": 10**400})


def test_dictionaries_of_criteo_are_its_hashes(tmp_path):
    lines = [["01"[n % 2], *map(str, range(13)), *(f"{n % 5 * 7919 + c:08x}" for c in range(26))] for n in range(80)]
    (tmp_path / "day_0").write_text("".join("\t".join(line) + "\n" for line in lines))
    common = ["--source", f"criteo:{tmp_path}/day_0", "--valid-fraction", "0"]
    prepare_clicks.prepare([*common, "--output", str(tmp_path / "a")])
    prepare_clicks.prepare([*common, "--output", str(tmp_path / "b"), "--dictionaries", str(tmp_path / "a")])
    first, second = ClickCorpus(tmp_path / "a"), ClickCorpus(tmp_path / "b")
    assert columns_of(first, "train") == columns_of(second, "train")
    assert first.split("train")["categories"].min() == 1


@pytest.mark.parametrize("idle", [("valid-fraction", "0.2"), ("test-fraction", "0.2"), ("seed", "3")])
def test_nothing_divides_rows_without_a_source(files, idle):
    option, value = f"--{idle[0]}", idle[1]
    train, held = f"csv:{files}/train.csv", "valid" if option.startswith("--test") else "test"
    run(files / "alone", "--source", train, *FEATURES)
    later = [f"--{held}-source", f"csv:{files}/test.csv", "--dictionaries", files / "alone"]
    with pytest.raises(DataError, match=f"^{option} divides the rows of --source, and there is none; name one, or rem"):
        run(files / "later", *later, option, value)
    assert list(run(files / "later", *later, option, "0").manifest["splits"]) == [held]
    assert "train" in run(files / "both", "--source", train, *later, option, value).manifest["splits"]


def test_a_valid_source_takes_nothing_from_train(files, capsys):
    train, test = (f"csv:{files}/{name}.csv" for name in ("train", "test"))
    corpus = run(files / "set", "--source", train, "--valid-source", test, "--label", "y=yes", *FEATURES)
    assert {name: len(corpus.split(name)["labels"]) for name in corpus.manifest["splits"]} == {
        "train": 200,
        "valid": 40,
    }
    assert "valid: 40 rows, 0.0% clicked; every label is 0, so it has no AUC" in capsys.readouterr().out


def test_a_pattern_for_all_files_leaves_out_the_held_out_one(files):
    corpus = run(files / "set", "--source", f"csv:{files}/t*.csv", "--test-source", f"csv:{files}/test.csv", *FEATURES)
    alone = run(
        files / "alone", "--source", f"csv:{files}/train.csv", "--test-source", f"csv:{files}/test.csv", *FEATURES
    )
    assert all(columns_of(corpus, split) == columns_of(alone, split) for split in ("train", "valid", "test"))


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_of_two_splits_is_refused_or_taken_from_train_under_any_name(files, link):
    link(files / "test.csv", files / "twin.csv")
    source, held = ["--source", f"csv:{files}/train.csv"], ["--valid-source", f"csv:{files}/twin.csv"]
    for test, name in (("tw*.csv", "twin"), ("test.csv", "test")):
        with pytest.raises(DataError, match=rf"twin\.csv of --valid-source .*, as .*/{name}\.csv;"):
            run(files / "set", *source, *held, "--test-source", f"csv:{files}/{test}", *FEATURES)
    whole = run(files / "set", "--source", f"csv:{files}/t[er]*.csv", *held, *FEATURES)
    alone = run(files / "alone", *source, *held, *FEATURES)
    assert columns_of(whole, "train") == columns_of(alone, "train")


def test_parameters_are_those_of_earlier_versions_where_nothing_new_is_asked_for(table, tmp_path):
    corpus = prepare(table, tmp_path / "set")
    assert set(corpus.manifest["parameters"]) == {
        *("source", "label", "columns", "dense", "categories", "join", "missing", "log", "hash_rows", "min_count"),
        *("valid_fraction", "test_fraction", "seed"),
    }


def test_what_was_skipped_is_told_also_where_nothing_is_left(table, tmp_path, capsys):
    with pytest.raises(DataError, match=r"no row came to train; check --source"):
        prepare(table, tmp_path / "set", "--label", "id", "--categories", "c")
    assert "skipped 300 bad_label, the first at" in capsys.readouterr().err


def test_generated_clicks_report_the_best_loss(tmp_path, capsys):
    common = ["--source", "generated:3000:5", "--hash-rows", "50,7", "--valid-fraction", "0.3"]
    prepare_clicks.prepare([*common, "--output", str(tmp_path / "set")])
    corpus = ClickCorpus(tmp_path / "set")
    assert (corpus.dense_features, corpus.table_rows) == (13, (50, 7))
    out = capsys.readouterr().out
    for name in ("train", "valid"):
        best = corpus.manifest["best_loss"][name]
        assert 0.2 < best < 0.69
        assert f"{best:.4f} nats" in next(line for line in out.splitlines() if line.startswith(name))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--label", "c=z", "--categories", "id"], r"label 0, and both are needed; check --label"),
        (["--label", "x>=0", "--dense", ""], r"label 1, and both are needed"),
        (["--test-fraction", "0.0001"], r"no row came to test"),
        (["--strict"], r"row 9.*wrong_fields"),
    ],
)
def test_a_failure_leaves_no_data_set(table, tmp_path, more, message):
    with pytest.raises(DataError, match=message):
        prepare(table, tmp_path / "set", *more)
    assert not list((tmp_path / "set").iterdir())


def test_mistakes_are_one_sentence_and_status_2(table, tmp_path, capsys):
    prepare_clicks.prepare(["--source", "generated:99", "--hash-rows", "9", "--output", str(tmp_path / "made")])
    prepare(table, tmp_path / "log", "--log")
    capsys.readouterr()
    csv = ["--source", f"csv:{table}", "--label", "y", "--dense", "x", "--categories", "c"]

    def status(*arguments):
        try:
            found = command.run(lambda: prepare_clicks.prepare([*arguments, "--output", str(tmp_path / "set")]))
        except SystemExit as exit:
            found = exit.code
        return found, capsys.readouterr().err

    for arguments, message in (
        (["--source", "criteo"], "use criteo:GLOB, csv:GLOB or generated:ROWS"),
        (["--source", "avro:x"], "unknown"),
        (["--source", f"csv:{table}", "--categories", "c"], "which rows were clicked; name a column with --label"),
        (["--source", f"criteo:{table}", "--dense", "x"], "--dense is for csv sources"),
        (["--source", f"criteo:{tmp_path}/none*"], "no file matches"),
        (["--source", "generated:9", "--hash-rows", "1"], "not in 2.."),
        (["--source", "generated:9", "--valid-fraction", "0.5", "--test-fraction", "0.5"], "nothing to train on"),
        (["--source", "generated:9"], "--hash-rows"),
        (
            [*csv, "--hash-rows", "9", "--min-count", "2"],
            "--min-count is for dictionaries, whose place --hash-rows takes",
        ),
        (["--source", f"csv:{table}", "--label", "y", "--categories", "c", "--log"], "--log is for numbers, and none"),
        (["--source", "generated:9", "--hash-rows", "9", "--test-source", "csv:x"], "--test-source is for files"),
        (["--source", "generated:9999999999999", "--hash-rows", "9"], "more than 1,000,000,000,000 rows"),
        (["--source", "generated:9", "--hash-rows", "9,x"], "'9,x' is not a list of whole numbers"),
        (["--test-source", f"csv:{table}"], "name a --source, or --dictionaries with"),
        ([*csv, "--valid-source", f"criteo:{table}"], "is not csv:GLOB"),
        ([*csv, "--valid-source", f"csv:{table}"], "has only files that are held out; name others"),
        ([*csv[:4], "--dictionaries", str(tmp_path / "none")], "there is no data set"),
        ([*csv[:6], "--dictionaries", str(tmp_path / "made")], "--dense is that of --dictionaries"),
        ([*csv[:4], "--dictionaries", str(tmp_path / "made")], "does not say how"),
        (["--source", f"criteo:{table}", "--dictionaries", str(tmp_path / "log")], "files of the same kind"),
    ):
        code, error = status(*arguments)
        assert (code, error.count("\n"), "Traceback" in error) == (2, 1, False)
        assert message in error


def test_the_command_runs_as_a_script(tmp_path):
    command = [sys.executable, str(ROOT / "data_prep" / "prepare_clicks.py"), "--source", "generated:2000"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    more = ["--hash-rows", "9,9", "--output", str(tmp_path / "set")]
    subprocess.run([*command, *more], cwd=tmp_path, env=env, check=True, capture_output=True)
    assert ClickCorpus(tmp_path / "set").table_rows == (9, 9)


def test_adult_whole(tmp_path):
    file = DATA / "adult" / "adult.data"
    if not file.is_file():
        pytest.skip("../shared/data/adult is not on this machine")
    dense = "age,fnlwgt,education-num,capital-gain,capital-loss,hours-per-week"
    words = "workclass,education,marital-status,occupation,relationship,race,sex,native-country"
    columns = ["--label", "classification=>50K", "--dense", dense, "--categories", words]
    prepare_clicks.prepare(["--source", f"csv:{file}", *columns, "--output", str(tmp_path / "set")])
    corpus = ClickCorpus(tmp_path / "set")
    lines = file.read_text().strip().splitlines()[1:]
    assert sum(len(corpus.split(name)["labels"]) for name in ("train", "valid")) == len(lines) == 32561
    assert sum(corpus.manifest["positives"].values()) == sum(line.endswith(">50K") for line in lines)
    assert not any(corpus.manifest["skipped"].values())
    assert abs(corpus.split("train")["dense"].mean(axis=0)).max() < 1e-3
    np.testing.assert_allclose(corpus.split("train")["dense"].std(axis=0), 1, atol=1e-3)


def test_movielens_joined_with_its_films(tmp_path):
    folder = DATA / "movielens_small"
    if not folder.is_dir():
        pytest.skip("../shared/data/movielens_small is not on this machine")
    features = "userId,movieId,genres,timestamp.hour,timestamp.weekday"
    columns = ["--join", f"{folder}/movies.csv:movieId", "--label", "rating>=4", "--categories", features]
    prepare_clicks.prepare(["--source", f"csv:{folder}/ratings.csv", *columns, "--output", str(tmp_path / "set")])
    corpus = ClickCorpus(tmp_path / "set")
    ratings = [float(line.split(",")[2]) for line in (folder / "ratings.csv").read_text().split()[1:]]
    assert sum(len(corpus.split(name)["labels"]) for name in ("train", "valid")) == len(ratings)
    assert sum(corpus.manifest["positives"].values()) == sum(rating >= 4 for rating in ratings)
    assert (corpus.dense_features, corpus.table_rows[0], corpus.table_rows[3:]) == (0, 611, (25, 8))
    assert corpus.split("train")["categories"].all()  # every film has a genre, every row a time
