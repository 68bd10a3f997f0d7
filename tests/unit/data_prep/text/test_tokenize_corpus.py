"""tokenize_corpus.py: exact, the same for any number of workers and after a kill, and never half there."""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizer_kinds import KINDS

from comera_dist.data.contents import file_sha256
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.shards import Corpus
from comera_dist.errors import DataError
from data_prep import tokenize_corpus, train_tokenizer
from data_prep.command import run
from data_prep.text.encoding import encode_in_order, token_dtype
from data_prep.text.shard_folder import ShardFolder
from data_prep.text.shards import TextShard, plan_shards, units_of
from data_prep.text.sources import Document

ROOT = Path(__file__).parents[4]
BOOKS = ROOT.parent / "shared" / "data" / "classic_books"


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """A folder with documents for several shards of 1 MB of text, and their tokenizer."""
    folder = tmp_path_factory.mktemp("material")
    with open(folder / "docs.jsonl", "w") as file:
        for index in range(1200):
            body = f"def function_{index}():\n    return {index} \u2581 é\n" * (40 + index % 70)
            file.write(json.dumps({"text": body}) + "\n")
        file.write("{broken\n")
    arguments = ["--source", f"files:{folder}/docs.jsonl", "--output", f"{folder}/tokenizer.model"]
    train_tokenizer.train([*arguments, "--vocab-size", "330"])
    return folder


def arguments(material, output, *more):
    source = [] if "--source" in more else ["--source", f"files:{material}/docs.jsonl"]
    settings = ["--tokenizer", f"{material}/tokenizer.model", "--output", str(output), "--shard-mb", "1"]
    return [*source, *settings, *map(str, more)]


def tokenize(material, output, *more):
    tokenize_corpus.tokenize(arguments(material, output, "--workers", 1, *more))
    return Corpus(output)


@pytest.fixture(scope="module")
def finished(material, tmp_path_factory) -> Corpus:
    return tokenize(material, tmp_path_factory.mktemp("finished") / "corpus")


def documents(corpus: Corpus, split: str) -> list[str]:
    tokenizer, part = open_tokenizer(corpus.tokenizer_path), corpus.split(split)
    ids = part.read(0, part.tokens)
    ends = (ids == corpus.eos_id).nonzero()[0]
    assert ends[-1] == len(ids) - 1
    starts = [0, *(ends + 1)]
    return [tokenizer.decode(ids[a:b].tolist()) for a, b in zip(starts, ends, strict=False)]


@pytest.mark.parametrize(("kind", "is_exact"), [("byte level", True), ("word piece", False)])
def test_a_tokenizer_of_the_users_own(material, tmp_path, capsys, kind, is_exact):
    path, texts = tmp_path / "own.json", ["def f():\n    return é", "range <|endoftext|> [SEP]"] * 9
    KINDS[kind]().save(str(path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>" if is_exact else "[SEP]"}))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = ["--source", f"files:{tmp_path}/a.jsonl", "--valid-fraction", "0", "--tokenizer", path]
    corpus = tokenize(material, tmp_path / "corpus", *source)
    (tmp_path / "tokenizer_config.json").unlink()  # from now on the corpus tells the end of a document
    assert (corpus.tokenizer_path.name, corpus.eos_id) == ("tokenizer.json", open_tokenizer(path).eos_id)
    assert corpus.manifest["splits"]["train"]["documents"] == len(texts)
    assert (documents(corpus, "train") == texts) == is_exact
    assert ("changes some texts" in capsys.readouterr().out) != is_exact


def test_every_document_is_there_once_and_exactly(material, finished):
    lines = (material / "docs.jsonl").read_text().splitlines()[:-1]
    texts = [json.loads(line)["text"] for line in lines]
    train, valid = documents(finished, "train"), documents(finished, "valid")
    assert sorted(train + valid) == sorted(texts)
    assert train == [text for text in texts if text in set(train)]
    assert not set(train) & set(valid)
    assert 20 < len(valid) < 120


def test_manifest_counts(finished):
    manifest = finished.manifest
    assert (manifest["format"], manifest["dtype"], manifest["vocab_size"]) == (1, "uint16", 330)
    assert manifest["skipped"]["broken_line"] == 1
    for name, entry in manifest["splits"].items():
        texts = documents(finished, name)
        assert entry["documents"] == len(texts)
        assert entry["bytes"] == sum(len(text.encode()) for text in texts)
        assert entry["tokens"] == finished.split(name).tokens
    assert len(manifest["splits"]["train"]["shards"]) > 2
    finished.contents.verify()


def test_nothing_but_the_corpus_is_left(finished):
    found = sorted(str(path.relative_to(finished.path)) for path in finished.path.rglob("*"))
    shards = [shard["file"] for entry in finished.manifest["splits"].values() for shard in entry["shards"]]
    assert found == sorted(["manifest.json", "tokenizer.model", "train", "valid", *shards])


def test_two_workers_write_the_same_corpus(material, finished, tmp_path):
    other = tokenize(material, tmp_path / "corpus", "--workers", 2)
    assert other.manifest == finished.manifest
    assert other.fingerprint == finished.fingerprint


def test_a_second_run_does_nothing(material, finished, capsys):
    before = (finished.path / "manifest.json").stat().st_mtime_ns
    tokenize(material, finished.path)
    assert "nothing to do" in capsys.readouterr().out
    assert (finished.path / "manifest.json").stat().st_mtime_ns == before


def test_strict_is_asked_again_of_a_finished_corpus(material, finished):
    with pytest.raises(DataError, match=r"made without --strict .* \(1 broken_line\); .* --overwrite"):
        tokenize(material, finished.path, "--strict")


def test_other_settings_are_refused_and_overwritten_on_request(material, finished, tmp_path):
    output = tmp_path / "corpus"
    shutil.copytree(finished.path, output)
    with pytest.raises(DataError, match=r"--overwrite .* another --output"):
        tokenize(material, output, "--seed", 1)
    assert Corpus(output).fingerprint == finished.fingerprint
    other = tokenize(material, output, "--seed", 1, "--overwrite")
    assert other.fingerprint != finished.fingerprint
    other.contents.verify()


def test_two_tokenizers_do_not_mix(material, finished, tmp_path):
    output = tmp_path / "corpus"
    shutil.copytree(finished.path, output)
    source = ["--source", f"files:{material}/docs.jsonl"]
    train_tokenizer.train([*source, "--vocab-size", "325", "--output", f"{tmp_path}/other.model"])
    with pytest.raises(DataError, match="tokenizer"):
        tokenize(material, output, "--tokenizer", tmp_path / "other.model")
    (output / "manifest.json").unlink()
    with pytest.raises(DataError, match="tokenizer"):
        tokenize(material, output, "--tokenizer", tmp_path / "other.model")
    assert file_sha256(output / "tokenizer.model") == finished.manifest["tokenizer"]["sha256"]


def start(material, output, *more) -> subprocess.Popen:
    command = [
        sys.executable,
        str(ROOT / "data_prep" / "tokenize_corpus.py"),
        *arguments(material, output, *more),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "gave up waiting"
        time.sleep(0.002)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_run_goes_on_where_it_stopped(material, finished, tmp_path, capsys):
    output = tmp_path / "corpus"
    process = start(material, output, "--workers", 2)
    wait_for(lambda: list(output.glob(".partial/records/*.json")))
    workers = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    wait_for(lambda: not any(map(runs, workers)))  # nobody is left waiting for work
    with pytest.raises(DataError, match="not finished"):
        Corpus(output)
    shards = {stem: output / ".partial" / stem.replace("-", "/") for stem in recorded(output)}
    times = {stem: shard.with_suffix(".bin").stat().st_mtime_ns for stem, shard in shards.items()}
    assert tokenize(material, output).manifest == finished.manifest
    assert f"{len(times)} finished shards kept" in capsys.readouterr().out
    written = {stem: (output / f"{stem.replace('-', '/')}.bin").stat().st_mtime_ns for stem in times}
    assert written == times, "a finished shard was written again"


def recorded(output) -> list[str]:
    """The finished shards of an unfinished run."""
    return sorted(path.stem for path in output.glob(".partial/records/*.json"))


def interrupted(material, output) -> list[str]:
    """The finished shards of a run that a broken line stopped, the last one of the source."""
    with pytest.raises(DataError, match="without --strict"):
        tokenize(material, output, "--strict")
    return recorded(output)


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interruption_is_a_sentence(capsys):
    assert run(interrupt) == 130
    assert capsys.readouterr().err == "Interrupted; run the same command again to continue.\n"


def test_a_damaged_shard_of_a_killed_run_is_written_again(material, finished, tmp_path, capsys):
    output = tmp_path / "corpus"
    shards = interrupted(material, output)
    assert len(shards) > 1
    shard = output / ".partial" / "train" / "00000.bin"
    shard.write_bytes(b"\0" * shard.stat().st_size)
    assert tokenize(material, output).manifest == finished.manifest
    assert f"{len(shards) - 1} finished shards kept" in capsys.readouterr().out


def test_a_killed_run_is_not_continued_with_other_settings(material, finished, tmp_path):
    output = tmp_path / "corpus"
    assert interrupted(material, output)
    with pytest.raises(DataError, match="--overwrite"):
        tokenize(material, output, "--seed", 5)
    assert tokenize(material, output, "--seed", 5, "--overwrite").manifest["parameters"]["seed"] == 5


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_end_of_a_text_is_another_setting(material, tmp_path, is_finished):
    KINDS["byte level"]().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    settings = ["--source", f"files:{material}/docs.jsonl", "--tokenizer", tmp_path / "tokenizer.json"]
    if is_finished:
        tokenize(material, tmp_path / "corpus", *settings)
    else:
        with pytest.raises(DataError, match="without --strict"):
            tokenize(material, tmp_path / "corpus", *settings, "--strict")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    with pytest.raises(DataError, match="--overwrite"):
        tokenize(material, tmp_path / "corpus", *settings)


def test_files_that_changed_after_a_kill_are_read_again(material, tmp_path, monkeypatch):
    """Files have no place to go on from: the texts of each shard are compared."""
    texts = [f"document {index}\n" * 20 for index in range(20)]
    for index, text in enumerate(texts):
        (tmp_path / f"{index:02d}.txt").write_text(text)
    settings = (material, tmp_path / "corpus", "--source", f"files:{tmp_path}/*.txt", "--valid-fraction", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(ShardFolder, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tokenize(*settings)
    (tmp_path / "00.txt").write_text("mended\n")
    (tmp_path / "20.txt").write_text("new\n")
    corpus = tokenize(*settings)
    assert sorted(documents(corpus, "train") + documents(corpus, "valid")) == sorted([*texts[1:], "mended\n", "new\n"])


def test_a_death_while_publishing_leaves_no_corpus_and_is_mended(material, finished, tmp_path):
    output = tmp_path / "corpus"
    output.mkdir()
    (output / "valid").write_text("in the way of the second split")
    assert run(lambda: tokenize(material, output)) == 2
    (output / "valid").unlink()
    assert (output / "train").is_dir()
    with pytest.raises(DataError, match="not finished"):
        Corpus(output)
    assert tokenize(material, output).manifest == finished.manifest


def test_two_runs_on_one_folder_are_refused(material, tmp_path):
    output = tmp_path / "corpus"
    output.mkdir()
    lock = os.open(output, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another process"):
        tokenize(material, output)
    os.close(lock)
    tokenize(material, output)


def test_the_source_is_read_only_a_few_units_ahead(material):
    read = []

    def endless():
        for index in range(10_000):
            read.append(index)
            yield "train", Document("", "text\n" * 50_000)

    shards = plan_shards(endless(), 500_000, {"train": TextShard("train", 0)})
    units = (unit for shard in shards for unit in units_of(shard))
    encoded = encode_in_order(units, material / "tokenizer.model", workers=2)
    for _ in range(3):
        next(encoded)
    assert len(read) < 40
    encoded.close()


def test_a_valid_source_is_the_validation_split(material, finished, tmp_path):
    text = documents(finished, "train")[7]
    (tmp_path / "valid.txt").write_text(text + "<|endoftext|>\nunseen\n")
    corpus = tokenize(material, tmp_path / "corpus", "--valid-source", f"files:{tmp_path}/valid.txt")
    assert documents(corpus, "valid") == [text, "unseen\n"]
    assert text not in documents(corpus, "train")
    assert corpus.manifest["skipped"]["in_valid"] == 1


def test_several_sources_are_read_in_their_order(material, tmp_path):
    names = ["b", "a", "c"]
    for name in names:
        (tmp_path / f"{name}.txt").write_text(f"text of {name}\n")
    sources = [f"files:{tmp_path}/{name}.txt" for name in names]
    held_out = [f"files:{material}/tokenizer.model.json", f"files:{tmp_path}/a.txt"]
    more = [part for source in sources for part in ("--source", source)]
    more += [part for source in held_out for part in ("--valid-source", source)]
    corpus = tokenize(material, tmp_path / "corpus", *more)
    assert documents(corpus, "train") == ["text of b\n", "text of c\n"]
    assert documents(corpus, "valid")[1:] == ["text of a\n"]
    assert corpus.manifest["source"] == corpus.manifest["parameters"]["source"] == sources
    assert corpus.manifest["parameters"]["valid_source"] == held_out
    tokenize(material, tmp_path / "corpus", *more)
    with pytest.raises(DataError, match="another source"):
        tokenize(material, tmp_path / "corpus", *more[2:])


def test_one_source_has_the_manifest_of_earlier_versions(finished, material):
    parameters = {"source": f"files:{material}/docs.jsonl", "text_key": "text", "seed": 0, "valid_fraction": 0.05}
    assert finished.manifest["parameters"] == {**parameters, "valid_source": None, "shard_mb": 1}
    assert finished.manifest["source"] == f"files:{material}/docs.jsonl"
    assert finished.manifest["skipped"].keys() == {"empty", "bad_encoding", "broken_line", "broken_file", "in_valid"}


def test_one_document_is_refused_with_remedies_that_help(material, tmp_path, capsys):
    (tmp_path / "one.txt").write_text(" = A = \n\ntext\n\n\nmore\n")
    source = ["--source", f"files:{tmp_path}/one.txt"]
    with pytest.raises(DataError, match=r"one document.* --document-separator.* --valid-source") as told:
        tokenize(material, tmp_path / "corpus", *source)
    assert "raise" not in str(told.value)
    corpus = tokenize(material, tmp_path / "corpus", *source, "--valid-fraction", 0)
    assert "1 finished shards kept" in capsys.readouterr().out
    assert list(corpus.splits) == ["train"]
    wrong = [*source, "--document-separator", "="]
    with pytest.raises(DataError, match=r"one document, which cannot be split; check --document-separator, or name a"):
        tokenize(material, tmp_path / "wrong", *wrong)
    tokenize(material, tmp_path / "wrong", *wrong, "--valid-fraction", 0)
    assert "no line that was read matches --document-separator '='" in capsys.readouterr().out
    split = [*source, "--document-separator", " *", "--valid-fraction", 0.5, "--seed", 3]
    corpus = tokenize(material, tmp_path / "split", *split)
    assert sorted(documents(corpus, "train") + documents(corpus, "valid")) == [" = A = \n", "more\n", "text\n"]
    assert corpus.manifest["parameters"]["document_separator"] == " *"


def test_an_unlucky_split_names_the_fraction_and_keeps_its_shards(material, tmp_path, capsys):
    for index in range(3):
        (tmp_path / f"{index}.txt").write_text(f"document {index}")
    source = ["--source", f"files:{tmp_path}/?.txt"]
    with pytest.raises(DataError, match=r"none of the 3 documents fell to validation.* raise --valid-fraction"):
        tokenize(material, tmp_path / "corpus", *source, "--valid-fraction", 1e-9)
    with pytest.raises(DataError, match=r"none of the 3 documents fell to training.* lower --valid-fraction"):
        tokenize(material, tmp_path / "corpus", *source, "--valid-fraction", 0.999999)
    other = ["--tokenizer", tmp_path / "other.model", "--valid-fraction", 0]
    train_tokenizer.train(
        ["--source", f"files:{material}/docs.jsonl", "--vocab-size", "325", "--output", f"{tmp_path}/other.model"]
    )
    with pytest.raises(DataError, match="another source, split or tokenizer"):
        tokenize(material, tmp_path / "corpus", *source, *other)
    tokenize(material, tmp_path / "corpus", *source, *other, "--overwrite").contents.verify()


def test_no_document_at_all_is_refused(material, tmp_path, capsys):
    with pytest.raises(DataError, match=r"no training document.*--text-key"):
        tokenize(material, tmp_path / "corpus", "--text-key", "content")
    assert "skipped 1201 broken_line" in capsys.readouterr().err


def test_a_large_vocabulary_is_stored_in_four_bytes():
    assert token_dtype(65536).itemsize == 2
    assert token_dtype(65537).itemsize == 4


def test_mistakes_are_one_sentence_and_status_2(material, tmp_path):
    script = str(ROOT / "data_prep" / "tokenize_corpus.py")
    for more in (
        ["--tokenizer", f"{tmp_path}/none"],
        ["--source", "files:none*"],
        ["--workers", "0"],
        ["--strict"],
    ):
        command = [sys.executable, script, *arguments(material, tmp_path / "corpus", *more)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
        sentences = [line for line in result.stderr.splitlines() if not line.startswith("tokenizing")]
        assert len(sentences) == 1


def test_the_commands_of_the_makefile_work(tmp_path):
    """As scripts and, for the second one, as a module."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    common = ["--source", f"files:{ROOT}/data_prep/*.py", "--valid-fraction", "0.3"]
    model = ["tokenizer.model", "--vocab-size", "700"]
    for command in (
        [str(ROOT / "data_prep" / "train_tokenizer.py"), *common, "--output", *model],
        ["-m", "data_prep.tokenize_corpus", *common, "--tokenizer", "tokenizer.model", "--output", "."],
    ):
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, check=True, capture_output=True)
    Corpus(tmp_path).contents.verify()


@pytest.mark.parametrize("settings", [b"{", b"[]", b'{"parameters": 1}'])
def test_damaged_settings_of_a_killed_run_are_replaced_on_request(material, tmp_path, settings):
    (tmp_path / "one.txt").write_text("text")
    source = ["--source", f"files:{tmp_path}/one.txt", "--valid-fraction", 0]
    (tmp_path / "corpus/.partial").mkdir(parents=True)
    (tmp_path / "corpus/.partial/parameters.json").write_bytes(settings)
    tokenize(material, tmp_path / "corpus", *source, "--overwrite")


def test_a_full_disk_is_a_sentence_and_the_same_command_goes_on(material, finished, tmp_path, capsys):
    output, before = tmp_path / "corpus", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert run(lambda: tokenize(material, output)) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        f"{output}: File too large; raise the limit of the size of files there, then run the same command again to "
        "continue"
    )
    assert tokenize(material, output).manifest == finished.manifest


def test_files_have_the_mode_that_the_user_asks_for(material, tmp_path):
    (tmp_path / "one.txt").write_text("text")
    before = os.umask(0o027)
    try:
        tokenize(material, tmp_path / "corpus", "--source", f"files:{tmp_path}/one.txt", "--valid-fraction", 0)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "corpus").rglob("*") if path.is_file()}
    assert modes == {0o640}


def test_a_tokenizer_that_vanishes_is_a_sentence_of_the_workers(material, tmp_path, capfd):
    units = units_of(next(plan_shards(iter([("train", Document("", "text"))]), 1, {"train": TextShard("train", 0)})))
    with pytest.raises(DataError, match=r"none\.model cannot be read"):
        list(encode_in_order(units, tmp_path / "none.model", workers=2))
    assert "Traceback" not in capfd.readouterr().err


def test_names_of_files_need_not_be_text(tmp_path, capsys):
    folder = os.fsencode(tmp_path)
    for name, content in ((b"\xe9.txt", b""), (b"b.txt", b"words of a text\n" * 99)):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    script = str(ROOT / "data_prep" / "train_tokenizer.py")
    command = ["--source", f"files:{tmp_path}/*", "--vocab-size", "300", "--valid-fraction", "0", "--output"]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}  # as in every locale but C
    command = [sys.executable, script, *command, f"{tmp_path}/t.model"]
    result = subprocess.run(command, capture_output=True, env=env, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"skipped 1 empty, the first at" in result.stdout


def test_books_split_into_files_by_their_owner(material, tmp_path):
    if not BOOKS.is_dir():
        pytest.skip("../shared/data/classic_books is not on this machine")
    books = ["--source", f"files:{BOOKS}/valid.txt", "--valid-source", f"files:{BOOKS}/test.txt"]
    corpus = tokenize(material, tmp_path / "corpus", *books)
    text = (BOOKS / "valid.txt").read_bytes().decode()
    assert "".join(book + "<|endoftext|>\n" for book in documents(corpus, "train")) == text
