"""The command prepare_pairs.py: texts come back from its columns, and no held-out pair is in train."""

import json

import numpy as np
import pytest
from tokenizer_kinds import KINDS

from comera_dist.data.masking import MaskedPairs
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.errors import DataError
from data_prep import prepare_pairs
from data_prep.command import run
from data_prep.pairs.sources import Keys, Pairs
from data_prep.pairs.word_borders import word_borders

LABELS = ["no", "perhaps", "yes"]


def write_table(path, rows):
    lines = ["first\tsecond\tlabel", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return f"files:{path}"


def numbered(count, start=0):
    return [
        (f"text number {i} says {i * i}", f"some_code({i % 7}, x) or else", LABELS[i % 3])
        for i in range(start, start + count)
    ]


def prepare(folder, *arguments, output="out", labels=True, vocab_size=340):
    common = ["--tokenizer", folder / "tokenizer.model", "--vocab-size", vocab_size, "--output", folder / output]
    prepare_pairs.prepare([*map(str, [*arguments, *common]), *(["--label-key", "label"] if labels else [])])
    return PairCorpus(folder / output)


def parameters(folder):
    return json.loads((folder / "out" / "manifest.json").read_bytes())["parameters"]


def texts(corpus, folder, name):
    """(first, second, label) of each row of a split, decoded."""
    tokenizer, columns = open_tokenizer(folder / "tokenizer.model"), corpus.split(name)
    start, rows = 0, []
    for first_end, second_end, label in zip(
        *(columns[key] for key in ("first_end", "second_end", "labels")), strict=True
    ):
        ids = [
            (columns["tokens"][a:b].astype(int) - SPECIALS).tolist()
            for a, b in ((start, first_end), (first_end, second_end))
        ]
        rows.append((*map(tokenizer.decode, ids), corpus.labels[label] if label >= 0 else None))
        start = second_end
    return rows


def test_what_is_written_is_what_was_read(tmp_path):
    rows = [("a  b", "é\u2581 \U0001f600", "yes"), *numbered(2500)]
    corpus = prepare(tmp_path, "--source", write_table(tmp_path / "a.tsv", rows), "--valid-fraction", 0.1)
    train, valid = texts(corpus, tmp_path, "train"), texts(corpus, tmp_path, "valid")
    assert sorted(train + valid) == sorted(rows)
    assert [row for row in rows if row in set(train)] == train, "the order is the source's"
    assert 170 < len(valid) < 330
    assert corpus.labels == LABELS
    assert corpus.vocab_size == 344


def test_batches_read_it(tmp_path):
    corpus = prepare(tmp_path, "--source", write_table(tmp_path / "a.tsv", numbered(300)))
    row_B = np.arange(8)
    batch = LabelledPairs(corpus, "train", 32).batch(row_B, row_B)
    assert [corpus.labels[label] for label in batch.targets_B] == [
        row[2] for row in texts(corpus, tmp_path, "train")[:8]
    ]
    masked = MaskedPairs(corpus, "valid", 32, 0.2, 1).batch(row_B, row_B)
    assert (masked.targets_BP != -100).any(dim=1).all()


def test_held_out_pairs_are_in_no_other_split(tmp_path, capsys):
    train = write_table(tmp_path / "train.tsv", numbered(300) + numbered(20, 10))
    other_spaces = [(first.replace(" ", "  "), second, "yes") for first, second, _ in numbered(50, 100)]
    valid = write_table(tmp_path / "valid.tsv", other_spaces + numbered(60, 1000))
    test = write_table(tmp_path / "test.tsv", numbered(40, 80))
    corpus = prepare(tmp_path, "--source", train, "--valid-source", valid, "--test-source", test)
    found = {
        name: {(" ".join(a.split()), b) for a, b, _ in texts(corpus, tmp_path, name)}
        for name in ("train", "valid", "test")
    }
    wanted = {
        name: {row[:2] for row in rows}
        for name, rows in {
            "train": numbered(80) + numbered(150, 150),
            "valid": numbered(30, 120) + numbered(60, 1000),
            "test": numbered(40, 80),
        }.items()
    }
    assert found == wanted
    assert "skipped 90 held_out" in capsys.readouterr().out  # 20 of valid are in test, 70 of train in valid or test


def test_a_share_of_what_is_held_out_may_be_test(tmp_path):
    train, valid = (
        write_table(tmp_path / "a.tsv", numbered(50)),
        write_table(tmp_path / "b.tsv", numbered(400, 400) * 2),
    )
    corpus = prepare(tmp_path, "--source", train, "--valid-source", valid, "--test-fraction", 0.5)
    both = {name: texts(corpus, tmp_path, name) for name in ("valid", "test")}
    assert not set(both["valid"]) & set(both["test"])
    assert len(both["valid"]) + len(both["test"]) == 800
    assert 300 < len(both["valid"]) < 500
    corpus = prepare(tmp_path, "--source", valid, "--valid-fraction", 0.5, "--test-fraction", 0.5, "--overwrite")
    sizes = [len(corpus.split(name)["labels"]) for name in ("train", "valid", "test")]
    assert sum(sizes) == 800
    assert 300 < sizes[0] < 500
    assert 130 < sizes[1] < 270


def test_a_side_does_not_depend_on_order_but_on_the_seed(tmp_path):
    sides = []
    for number, (rows, seed) in enumerate([(numbered(400), 0), (numbered(400)[::-1], 0), (numbered(400), 1)]):
        source = write_table(tmp_path / "a.tsv", rows)
        corpus = prepare(tmp_path, "--source", source, "--seed", seed, "--overwrite", output=f"out{number}")
        sides.append(set(texts(corpus, tmp_path, "valid")))
    assert sides[0] == sides[1] != sides[2]


def test_pairs_without_labels_may_join(tmp_path):
    table = write_table(tmp_path / "a.tsv", numbered(60))
    corpus = prepare(
        tmp_path, "--source", table, "--source", "docstrings:json", "--valid-source", table, vocab_size=450
    )
    assert {label for _, _, label in texts(corpus, tmp_path, "train")} == {None}
    assert {label for _, _, label in texts(corpus, tmp_path, "valid")} == set(LABELS)
    corpus = prepare(tmp_path, "--source", table, "--overwrite", labels=False)
    assert corpus.labels == []
    assert {label for _, _, label in texts(corpus, tmp_path, "train")} == {None}


def test_labels_that_only_held_out_pairs_have_are_told(tmp_path, capsys):
    """As of files that name the same classes in two ways: a model never learns those of validation."""
    train = write_table(tmp_path / "a.tsv", [pair for pair in numbered(60) if pair[2] != "yes"])
    valid = write_table(tmp_path / "b.tsv", numbered(60, 60))
    prepare(tmp_path, "--source", train, "--valid-source", valid)
    assert "train has no pair of 1 labels that are held out, e.g. 'yes'" in capsys.readouterr().out
    prepare(tmp_path, "--source", valid, "--valid-source", train, "--overwrite")
    assert "no pair of" not in capsys.readouterr().out


def test_an_excluded_package_stays_for_validation(tmp_path, capsys):
    sources = ["--source", "docstrings:json,email", "--valid-source", "docstrings:json"]
    corpus = prepare(tmp_path, *sources, "--exclude-package", "json", labels=False, vocab_size=450)
    assert "held_out" not in capsys.readouterr().out, "they were not even read"
    train, valid = texts(corpus, tmp_path, "train"), texts(corpus, tmp_path, "valid")
    alone = prepare(tmp_path, "--source", "docstrings:email", *sources[2:], "--overwrite", labels=False, vocab_size=450)
    assert train == texts(alone, tmp_path, "train")
    assert any("JSON" in docstring for docstring, _, _ in valid)


@pytest.mark.parametrize("sources", [["files:{}"], ["docstrings:python-stdlib"], ["files:{}", "docstrings:email"]])
def test_an_excluded_package_that_no_source_has_is_refused(tmp_path, sources):
    table = write_table(tmp_path / "a.tsv", numbered(20)).removeprefix("files:")
    words = [word for source in sources for word in ("--source", source.format(table))]
    with pytest.raises(DataError, match=r"^--exclude-package json leaves nothing out; name the package"):
        prepare(tmp_path, *words, "--exclude-package", "json", labels=False)
    assert Pairs([source.format(table) for source in [*sources, "docstrings:json"]], Keys(("a",), ("b",)), ["json"])


def test_a_second_run_changes_nothing_and_another_setting_is_refused(tmp_path, capsys):
    source = write_table(tmp_path / "a.tsv", numbered(200))
    first = prepare(tmp_path, "--source", source)
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    assert prepare(tmp_path, "--source", source).fingerprint == first.fingerprint
    assert "nothing to do" in capsys.readouterr().out
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="--overwrite"):
        prepare(tmp_path, "--source", source, "--seed", 1)
    (tmp_path / "tokenizer.model").unlink()
    assert prepare(tmp_path, "--source", source, "--overwrite").fingerprint == first.fingerprint


def test_the_tokenizer_learns_from_train_alone(tmp_path):
    train = write_table(tmp_path / "a.tsv", numbered(200))
    valid = write_table(tmp_path / "b.tsv", [("qqqqqqqqqqqqqqqq" * 50, f"ж{i}", "yes") for i in range(200)])
    prepare(tmp_path, "--source", train, "--valid-source", valid)
    alone = len(open_tokenizer(tmp_path / "tokenizer.model").encode("qqqqqqqqqqqqqqqq"))
    prepare(tmp_path, "--source", train, "--source", valid, "--overwrite")
    assert len(open_tokenizer(tmp_path / "tokenizer.model").encode("qqqqqqqqqqqqqqqq")) < alone


def test_words_begin_at_spaces_lines_and_marks(tmp_path):
    prepare(tmp_path, "--source", write_table(tmp_path / "a.tsv", numbered(200)))
    starts_V, ends_V = word_borders(open_tokenizer(tmp_path / "tokenizer.model"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.model")
    words, text = [], "text number says some_code(17, x)\n    or Ж2 elsewhere"
    last = 0  # a special
    for token in np.array(tokenizer.encode(text)) + SPECIALS:
        if starts_V[token] or ends_V[last]:
            words.append([])
        words[-1].append(int(token) - SPECIALS)
        last = token
    assert [tokenizer.decode(word) for word in words[:3]] == ["text", " number", " says"]
    joined = [tokenizer.decode(word).strip(" ") for word in words]
    assert [word for word in joined if word] == [
        *["text", "number", "says", "some_code", "(", "17", ",", "x", ")", "\n", "or", "Ж2", "elsewhere"]
    ]
    assert starts_V[:SPECIALS].all()
    assert ends_V[:SPECIALS].all()
    assert len(starts_V) == len(ends_V) == tokenizer.vocab_size + SPECIALS


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_with_a_tokenizer_of_the_users_own(tmp_path, kind):
    KINDS[kind]().save(str(tmp_path / "own.json"))
    rows = [(f"total of item {i}", f"range({i})", LABELS[i % 3]) for i in range(60)]
    source, out = write_table(tmp_path / "a.tsv", rows), tmp_path / "out"
    arguments = ["--source", source, "--tokenizer", tmp_path / "own.json", "--output", out, "--label-key", "label"]
    prepare_pairs.prepare([*map(str, arguments)])
    tokenizer, (starts_V, ends_V) = open_tokenizer(out / "tokenizer.json"), PairCorpus(out).word_borders()
    words, last = [], 0  # a special
    for token in tokenizer.encode("total item 17 (adding)"):
        if starts_V[token + SPECIALS] or ends_V[last]:
            words.append([])
        words[-1].append(token)
        last = token + SPECIALS
    said = [tokenizer.decode([*tokenizer.encode("a"), *word])[1:].strip() for word in words]
    assert [word for word in said if word] == ["total", "item", "17", "(", "adding", ")"]


def test_mistakes_are_one_sentence_and_status_2(tmp_path, capsys):
    def status(*arguments):
        try:
            result = run(lambda: prepare(tmp_path, *arguments))
        except SystemExit as exit:
            result = exit.code
        error = capsys.readouterr().err
        return result, error.strip().splitlines()[-1]

    good = write_table(tmp_path / "a.tsv", numbered(20))
    bad = write_table(tmp_path / "b.tsv", [("a", "b", "-"), *numbered(20)])
    empty = write_table(tmp_path / "c.tsv", [])
    for arguments, sentence in [
        (["--source", "web:all"], "docstrings:installed"),
        (["--source", bad, "--strict"], "b.tsv:2: the label is '-' (unknown_label)"),
        (["--source", good, "--first-key", "premise"], "no column premise; name one of first, second, label"),
        (["--source", good, "--valid-source", empty], "no pair for valid was found; check --valid-source"),
        (["--source", good, "--first-key", ","], "',' names no column; remove the option"),
        (["--source", good, "--seed", "9" * 70], "does not fit 64 bits"),
        (["--source", good, "--valid-source", good], "exists and was made with other settings; pass --overwrite"),
        (["--source", good, "--valid-source", good, "--overwrite"], "no tokenizer with 340 entries"),
    ]:
        code, line = status(*arguments)
        assert code == 2
        assert sentence in line


def test_a_model_that_does_not_fit_says_which_data_it_wants(tmp_path):
    source = write_table(tmp_path / "a.tsv", numbered(60))
    prepare(tmp_path, "--source", source)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    (tmp_path / "out" / "manifest.json").write_text(json.dumps({**manifest, "kind": "clicks"}))
    with pytest.raises(DataError, match="holds clicks, and this model reads pairs"):
        PairCorpus(tmp_path / "out")


def grouped(count, start=0):
    """Three pairs for each first text."""
    return [(f"premise number {i // 3}", f"some text {i * i} or else", LABELS[i % 3]) for i in range(start, count)]


def test_pairs_of_one_group_are_in_one_split(tmp_path):
    rows = [(f" {first} " if i % 2 else first, *more) for i, (first, *more) in enumerate(grouped(900))]
    source = write_table(tmp_path / "a.tsv", rows)
    shares = ["--valid-fraction", 0.4, "--test-fraction", 0.5]
    corpus = prepare(tmp_path, "--source", source, "--group-key", "first", *shares)
    premises = {name: {a.strip() for a, _, _ in texts(corpus, tmp_path, name)} for name in ("train", "valid", "test")}
    assert sum(map(len, premises.values())) == 300
    assert len(set.union(*premises.values())) == 300
    assert all(40 < len(found) < 220 for found in premises.values())
    assert parameters(tmp_path)["group_key"] == "first"
    again = prepare(
        tmp_path,
        "--source",
        write_table(tmp_path / "b.tsv", rows[::-1]),
        "--group-key",
        "first",
        *shares,
        "--overwrite",
        output="again",
    )
    assert {a.strip() for a, _, _ in texts(again, tmp_path, "test")} == premises["test"]


def test_the_groups_of_a_held_out_source_stay_out_of_train(tmp_path, capsys):
    train, valid = write_table(tmp_path / "a.tsv", grouped(300)), write_table(tmp_path / "b.tsv", grouped(60)[::3])
    corpus = prepare(tmp_path, "--source", train, "--valid-source", valid, "--group-key", "first")
    assert {first for first, _, _ in texts(corpus, tmp_path, "train")} == {row[0] for row in grouped(300, 60)}
    assert "skipped 60 held_out" in capsys.readouterr().out


def test_without_groups_parameters_are_those_of_earlier_versions(tmp_path):
    prepare(tmp_path, "--source", write_table(tmp_path / "a.tsv", numbered(60)))
    assert "group_key" not in parameters(tmp_path)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [("docstrings:json", "has no columns; remove --group-key"), ("files:{}", "no column speaker; .* with --group-key")],
)
def test_a_source_without_the_group_is_refused(tmp_path, source, sentence):
    write_table(tmp_path / "a.tsv", numbered(20))
    with pytest.raises(DataError, match=sentence):
        prepare(tmp_path, "--source", source.format(tmp_path / "a.tsv"), "--group-key", "speaker", labels=False)
