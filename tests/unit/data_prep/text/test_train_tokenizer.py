"""The command train_tokenizer.py: repeatable, deaf to validation text, and plain about mistakes."""

import json

import pytest

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.errors import DataError
from data_prep import train_tokenizer
from data_prep.command import run


def write_documents(folder, count=300):
    lines = [json.dumps({"text": f"document {i} says {i * i} words of code\n" * 3}) for i in range(count)]
    (folder / "docs.jsonl").write_text("\n".join(lines))
    return f"files:{folder}/docs.jsonl"


def train(source, output, *more):
    train_tokenizer.train(
        ["--source", source, "--output", str(output), "--vocab-size", "340", *map(str, more)],
    )


def test_a_second_run_changes_nothing(tmp_path, capsys):
    source, output = write_documents(tmp_path), tmp_path / "out" / "tokenizer.model"
    train(source, output)
    before = output.stat().st_mtime_ns
    train(source, output)
    assert "nothing to do" in capsys.readouterr().out
    assert output.stat().st_mtime_ns == before
    with pytest.raises(DataError, match="--overwrite"):
        train(source, output, "--seed", 1)
    train(source, output, "--seed", 1, "--overwrite")
    assert output.stat().st_mtime_ns != before


def test_strict_is_asked_again_of_a_finished_model(tmp_path):
    source, output = write_documents(tmp_path), tmp_path / "tokenizer.model"
    train(source, output)
    assert "skipped" not in json.loads((tmp_path / "tokenizer.model.json").read_text())
    train(source, output, "--strict")
    with open(tmp_path / "docs.jsonl", "a") as file:
        file.write("\n{broken\n")
    train(source, output, "--overwrite")
    train(source, output)
    with pytest.raises(DataError, match=r"made without --strict .* \(1 broken_line\); .* --overwrite"):
        train(source, output, "--strict")


def test_a_damaged_model_is_not_taken_for_finished(tmp_path):
    source, output = write_documents(tmp_path), tmp_path / "tokenizer.model"
    train(source, output)
    output.write_bytes(b"cut")
    with pytest.raises(DataError, match="--overwrite"):
        train(source, output)


@pytest.mark.parametrize("content", ['{"version": "1.0", "model": {}}', "notes"])
def test_a_file_of_others_is_not_replaced_by_the_record(content, tmp_path):
    source, foreign = write_documents(tmp_path), tmp_path / "tokenizer.json"
    foreign.write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json is no record .* would replace it; name .*tokenizer\.model"):
        train(source, tmp_path / "tokenizer", "--overwrite")
    assert foreign.read_text() == content
    assert not (tmp_path / "tokenizer").exists()


def test_a_cut_record_of_ours_is_replaced(tmp_path):
    source, output = write_documents(tmp_path), tmp_path / "tokenizer.model"
    train(source, output)
    (tmp_path / "tokenizer.model.json").write_text("{")
    train(source, output, "--overwrite")
    assert "sha256" in json.loads((tmp_path / "tokenizer.model.json").read_text())


def test_validation_text_is_not_learned(tmp_path):
    source = write_documents(tmp_path)
    (tmp_path / "valid.txt").write_text("ΩΩΩ ЖЖЖ qqqqqqqqqqqqqqqq\n" * 2000)
    train(source, tmp_path / "a.model", "--valid-source", f"files:{tmp_path}/valid.txt")
    train(f"files:{tmp_path}/*[sd].*", tmp_path / "b.model", "--valid-fraction", 0)
    with_valid, without_valid = open_tokenizer(tmp_path / "b.model"), open_tokenizer(tmp_path / "a.model")
    assert len(without_valid.encode("qqqqqqqq")) > len(with_valid.encode("qqqqqqqq"))


def test_every_source_is_learned_from_and_recorded(tmp_path):
    source, output = write_documents(tmp_path), tmp_path / "tokenizer.model"
    (tmp_path / "more.rst").write_text("qqqqqqqqqqqqqqqq\n" * 2000)
    more = f"files:{tmp_path}/more.rst"
    train(source, output, "--source", more, "--valid-fraction", 0)
    assert len(open_tokenizer(output).encode("qqqqqqqq")) < 4
    assert json.loads((tmp_path / "tokenizer.model.json").read_text())["source"] == [source, more]
    with pytest.raises(DataError, match="named twice"):
        train(source, output, "--source", source, "--overwrite")


def test_a_source_whose_only_document_is_held_out_is_refused_with_remedies(tmp_path):
    (tmp_path / "one.txt").write_text("a document " * 50)
    with pytest.raises(DataError, match=r"all documents fell to validation, 1 .* --valid-fraction 0, .*separator"):
        train(f"files:{tmp_path}/one.txt", tmp_path / "t.model", "--valid-fraction", 0.999999)
    (tmp_path / "one.txt").write_text(" ")
    with pytest.raises(DataError, match=r"no training document was found"):
        train(f"files:{tmp_path}/one.txt", tmp_path / "t.model")


def test_a_separator_that_matches_no_line_is_told(tmp_path, capsys):
    (tmp_path / "a.md").write_text("".join(f"document {i} says {i * i} words of code\n" for i in range(300)))
    train(f"files:{tmp_path}/a.md", tmp_path / "t.model", "--valid-fraction", 0, "--document-separator", "two fox")
    assert "no line that was read matches --document-separator 'two fox'" in capsys.readouterr().out


def test_max_bytes_limits_what_is_read(tmp_path, capsys):
    source = write_documents(tmp_path, 3000)
    train(source, tmp_path / "a.model", "--max-bytes", 100_000)
    assert "first 0 MB" in capsys.readouterr().out


def test_mistakes_are_one_sentence_and_status_2(tmp_path, capsys):
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    source = f"files:{tmp_path}/broken.jsonl"
    assert run(lambda: train(source, tmp_path / "t.model", "--strict")) == 2
    error = capsys.readouterr().err
    assert "broken.jsonl:2" in error
    assert error.count("\n") == 1
    assert run(lambda: train("web:all", tmp_path / "t.model")) == 2
    assert "python-stdlib, files:GLOB or hub:NAME" in capsys.readouterr().err
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n')
    assert run(lambda: train(source, tmp_path / "t.model", "--vocab-size", 10**9)) == 2
    assert "--vocab-size 1000000000 is more than 16,777,216 entries; name fewer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "bad",
    [
        ["--vocab-size", "0"],
        ["--vocab-size", "x"],
        ["--vocab-size=--"],
        ["--valid-fraction", "1"],
        ["--nope"],
        ["--seed", "9" * 70],
        ["--document-separator", "("],
        ["--document-separator", ""],
    ],
)
def test_malformed_arguments_are_one_line_and_status_2(bad, capsys):
    with pytest.raises(SystemExit) as stop:
        train_tokenizer.train(["--output", "unused.model", *bad])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
