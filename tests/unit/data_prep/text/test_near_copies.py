"""Near copies are left out of a corpus, against exact similarities of all pairs."""

import json
import random

import pytest

from comera_dist.data.shards import Corpus
from data_prep import tokenize_corpus, train_tokenizer
from data_prep.files.skips import Skips
from data_prep.text.near_copies import NEAR_COPY, NearCopies, shingles, without_near_copies
from data_prep.text.sources import Document

WORDS = [f"word{index}" for index in range(500)]


def written(rng, words=300):
    return [rng.choice(WORDS) for _ in range(words)]


def with_changes(words, rng, count):
    changed = list(words)
    for place in rng.sample(range(len(words)), count):
        changed[place] = f"other{rng.random()}"
    return changed


def similarity(first, second):
    """Exact, from sets of five words."""
    sets = [{tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))} for words in (first, second)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def kept(texts, threshold=0.8):
    skips = Skips(strict=True, kinds=())
    documents = (("train", Document(str(number), " ".join(words))) for number, words in enumerate(texts))
    found = [int(document.where) for _, document in without_near_copies(documents, NearCopies(threshold), skips)]
    return found, skips.counts.get(NEAR_COPY, 0)


def test_documents_far_from_the_threshold_are_told_apart_without_error():
    rng, texts = random.Random(0), []
    for count in (1, 2, 3, 30, 40, 60, 100) * 4:
        original = written(rng)
        texts += [original, with_changes(original, rng, count)]
    expected, unsure = [], 0
    for number, words in enumerate(texts):
        nearest = max((similarity(words, texts[one]) for one in range(number)), default=0.0)
        unsure += 0.6 < nearest < 0.9
        if nearest < 0.8:
            expected.append(number)
    assert not unsure  # so an error would be one of three standard deviations
    assert kept(texts) == (expected, len(texts) - len(expected))
    assert len(texts) - len(expected) == 12


@pytest.mark.parametrize("threshold", [0.5, 0.85, 0.95])
def test_the_threshold_is_the_one_that_was_asked_for(threshold):
    rng = random.Random(1)
    originals = [written(rng) for _ in range(10)]
    near = [with_changes(words, rng, 12) for words in originals]
    alike = [similarity(a, b) for a, b in zip(originals, near, strict=True)]
    assert 0.63 < min(alike) <= max(alike) < 0.75
    _, left_out = kept([*originals, *near], threshold)
    assert left_out == (10 if threshold == 0.5 else 0)


def test_short_and_reordered_documents():
    rng = random.Random(2)
    words = written(rng)
    texts = [["a", "b"], ["a", "b"], ["a", "c"], words, words[150:] + words[:150], list(reversed(words))]
    assert kept(texts) == ([0, 2, 3, 5], 2)  # two halves in another order share all runs but a few


def test_shingles_are_runs_of_five_words():
    assert shingles("a b  c\nd e f") == ["a b c d e", "b c d e f"]
    assert shingles("a b") == ["a b"]


@pytest.fixture
def material(tmp_path):
    """Forty documents, of which every fourth has a near copy, and two held-out documents that are near copies too."""
    rng = random.Random(3)
    originals = [written(rng) for _ in range(40)]
    copies = [with_changes(words, rng, 2) for words in originals[::4]]
    held_out = [with_changes(words, rng, 2) for words in originals[1:3]]
    for name, texts in (("docs", [*originals, *copies]), ("valid", held_out)):
        lines = [json.dumps({"text": " ".join(words)}) for words in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    model = str(tmp_path / "tokenizer.model")
    train_tokenizer.train(["--source", f"files:{tmp_path}/docs.jsonl", "--vocab-size", "300", "--output", model])
    return tmp_path


def tokenized(material, *more, workers=1):
    output = material / f"corpus{len(more)}{workers}"
    arguments = ["--source", f"files:{material}/docs.jsonl", "--valid-source", f"files:{material}/valid.jsonl"]
    arguments += ["--tokenizer", f"{material}/tokenizer.model", "--output", str(output), "--workers", str(workers)]
    tokenize_corpus.tokenize([*arguments, *more])
    return Corpus(output)


def test_a_corpus_without_near_copies_counts_them_and_keeps_held_out_text_out_of_train(material):
    corpus = tokenized(material, "--near-duplicates", "0.8", "--strict")
    assert corpus.manifest["skipped"][NEAR_COPY] == 10 + 2
    assert corpus.manifest["parameters"]["near_duplicates"] == 0.8
    assert (corpus.split("train").documents, corpus.split("valid").documents) == (38, 2)
    assert tokenized(material, "--near-duplicates", "0.8", "--strict", workers=2).fingerprint == corpus.fingerprint


def test_without_the_option_nothing_is_left_out_and_nothing_recorded(material):
    corpus = tokenized(material)
    assert corpus.split("train").documents == 50
    assert NEAR_COPY not in corpus.manifest["skipped"]
    assert "near_duplicates" not in corpus.manifest["parameters"]


@pytest.mark.parametrize("value", ["0.3", "1.5", "much"])
def test_impossible_similarities_are_refused(material, capsys, value):
    with pytest.raises(SystemExit) as stop:
        tokenized(material, "--near-duplicates", value)
    assert stop.value.code == 2
    assert "--near-duplicates" in capsys.readouterr().err
