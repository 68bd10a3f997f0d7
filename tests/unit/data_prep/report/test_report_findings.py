"""What a report finds in texts, against counts by hand."""

import random
from collections import Counter

import numpy as np

from data_prep.report.findings import Findings
from data_prep.report.languages import Languages
from data_prep.report.texts import Sample, TextSplit

SPLIT = TextSplit("train", 0, 0, None, iter)
WORDS = 300


def findings(documents, train=None, similarity=0.8):
    """Documents are lists of ids, and id n is the word "n"."""
    found = Findings(SPLIT, WORDS + 1, similarity)
    samples = [Sample([np.array(ids, dtype=np.int64)]) for ids in documents]
    found.read(samples, lambda ids: " ".join(map(str, ids)), train)
    return found


def with_change(ids):
    """A near copy: one word of many is another."""
    return [*ids[:50], WORDS, *ids[51:]]


def test_tokens_and_lengths_are_those_of_a_loop():
    rng = random.Random(0)
    documents = [[rng.randrange(WORDS) for _ in range(rng.randrange(1, 50))] for _ in range(40)]
    found, counts = findings(documents), Counter(token for ids in documents for token in ids)
    assert found.count_V.tolist() == [counts[token] for token in range(WORDS + 1)]
    assert found.lengths == [len(ids) for ids in documents]


def test_copies_are_counted_where_they_were_planted():
    rng = random.Random(1)
    originals = [[rng.randrange(WORDS) for _ in range(200)] for _ in range(30)]
    exact, near = originals[:4], [with_change(ids) for ids in originals[4:10]]
    train = findings([*originals, *exact, *near])
    assert (train.exact_copies, train.near_copies, train.near_train) == (4, 10, 0)
    own = [[rng.randrange(WORDS) for _ in range(200)] for _ in range(5)]
    valid = findings([*own, *own[:1], *(with_change(ids) for ids in originals[20:23])], train.near)
    assert (valid.exact_copies, valid.near_copies, valid.near_train) == (1, 1, 3)


def test_the_similarity_is_the_one_that_was_asked_for():
    rng = random.Random(2)
    originals = [[rng.randrange(WORDS) for _ in range(200)] for _ in range(10)]
    documents = [*originals, *(with_change(ids) for ids in originals)]
    assert (findings(documents, similarity=0.5).near_copies, findings(documents, similarity=1.0).near_copies) == (10, 0)


def test_both_texts_of_a_pair_count_and_so_does_its_label():
    found = Findings(SPLIT, WORDS, 0.8)
    texts = [np.array([1, 2]), np.array([2, 3, 3])]
    found.read([Sample(texts, "yes"), Sample(texts, "no"), Sample(texts, "yes")], str, None)
    assert found.lengths == [5, 5, 5]
    assert found.count_V[:5].tolist() == [0, 3, 6, 6, 0]
    assert found.labels == {"yes": 2, "no": 1}


def test_scripts_are_those_of_the_characters():
    writing = Languages()
    writing.add("abc, é 123 \n\t _ жя 日本 ひ ω \u0301 \ufffd")
    assert writing.scripts == {"Latin": 4, "Cyrillic": 2, "Han": 2, "Hiragana": 1, "Greek": 1}


def test_languages_are_told_and_doubt_is_named():
    writing = Languages()
    for text in (
        "Der Hund lief gestern über die Straße, weil er eine Katze gesehen hatte.",
        "Die Kinder spielten den ganzen Nachmittag im Garten, obwohl es regnete.",
        "Le chien a traversé la rue hier parce qu'il avait vu un chat dans le jardin.",
        "The dog ran across the street yesterday because it had seen a cat in the garden.",
        "Вчера собака перебежала через улицу, потому что она увидела в саду кошку, и долго не возвращалась домой.",
        "昨日、犬は庭で猫を見たので通りを渡りました。",
        "x = 1",
        "",
    ):
        writing.add(text)
    assert writing.languages == {"de": 2, "fr": 1, "en": 1, "ru": 1, "ja": 1, "und": 2}
