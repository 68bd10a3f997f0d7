"""Made-up items of multiple choice that a small model of English or of code can answer. YAML files name the functions.

Each function returns the split `test` and the split `train`, which has the examples of few-shot prompts. Both are the
same at every call, and no text is in both. An item has a `text`, the `choices` that may follow after a space, and
`answer`, the index of the right one. Keyword arguments come from lm_eval and have no effect.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

from datasets import Dataset

ITEMS = 200  # chosen: the standard error of an accuracy is at most 0.035
EXAMPLES = 10  # chosen: the test leaves 11 of the 95 texts that `counting` can make
DRAWS = 10 * ITEMS  # chosen: among so many, every task has EXAMPLES that are not in the test
Item = tuple[str, str, list[str]]  # the text, the right choice, the wrong ones

NOUNS = (
    *("book", "child", "door", "file", "friend", "house", "key", "letter", "line"),
    *("list", "name", "number", "object", "question", "road", "room", "test", "value"),
)
PRONOUNS = {0: ("he", "she", "it"), 1: ("we", "you", "they")}
VERBS = (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"))
WORDS = (
    *("apple", "bread", "chair", "cloud", "flower", "glass", "grass", "horse", "lamp"),
    *("milk", "paper", "river", "shoe", "stone", "table", "tree", "water", "window"),
)
PAIRS = {"(": ")", "[": "]", "{": "}"}
DEEPEST = 4  # chosen: open brackets at once
LONGEST = 12  # chosen: brackets of a text


def agreement(**_: Any) -> dict[str, Dataset]:
    """The verb agrees with the pronoun before it."""
    return _splits(_agreement)


def agreement_far(**_: Any) -> dict[str, Dataset]:
    """The verb agrees with its subject and not with the noun between them."""
    return _splits(_agreement_far)


def brackets(**_: Any) -> dict[str, Dataset]:
    """The bracket that was opened last is closed first."""
    return _splits(_brackets)


def copying(**_: Any) -> dict[str, Dataset]:
    """Five random words are repeated, and the last one is missing."""
    return _splits(_copying)


def counting(**_: Any) -> dict[str, Dataset]:
    """The number that comes after four numbers in a row."""
    return _splits(_counting)


def _splits(make: Callable[[Random], Item]) -> dict[str, Dataset]:
    test = list(islice(_rows(make, Random(0)), ITEMS))
    tested = {row["text"] for row in test}
    others = {row["text"]: row for row in islice(_rows(make, Random(1)), DRAWS) if row["text"] not in tested}
    return {"train": Dataset.from_list(list(others.values())[:EXAMPLES]), "test": Dataset.from_list(test)}


def _rows(make: Callable[[Random], Item], random: Random) -> Iterator[dict[str, Any]]:
    """Endless items."""
    while True:
        text, right, wrong = make(random)
        choices = random.sample([right, *wrong], 1 + len(wrong))
        yield {"text": text, "choices": choices, "answer": choices.index(right)}


def _agreement(random: Random) -> Item:
    plural, verbs = random.choice((0, 1)), random.choice(VERBS)
    noun, pronoun = _in_number(random.choice(NOUNS), random.choice((0, 1))), random.choice(PRONOUNS[plural])
    return f"In the {noun} {pronoun}", verbs[plural], [verbs[1 - plural]]


def _agreement_far(random: Random) -> Item:
    subject, other = random.sample(NOUNS, 2)
    plural, verbs = random.choice((0, 1)), random.choice(VERBS)
    text = f"The {_in_number(subject, plural)} near the {_in_number(other, random.choice((0, 1)))}"
    return text, verbs[plural], [verbs[1 - plural]]


def _in_number(noun: str, plural: int) -> str:
    return noun if not plural else {"child": "children"}.get(noun, f"{noun}s")


def _brackets(random: Random) -> Item:
    """A balanced sequence of brackets, up to a place where one must be closed."""
    open_ones = [random.choice("([{")]
    text = list(open_ones)
    for _ in range(random.randrange(2, LONGEST)):
        if len(open_ones) > 1 and (len(open_ones) == DEEPEST or random.random() < 0.5):
            text.append(PAIRS[open_ones.pop()])
        else:
            open_ones.append(random.choice("([{"))
            text.append(open_ones[-1])
    right = PAIRS[open_ones[-1]]
    return " ".join(text), right, [closing for closing in PAIRS.values() if closing != right]


def _copying(random: Random) -> Item:
    words = random.sample(WORDS, 8)
    known, strangers = words[:5], words[5:]
    return " ".join([*known, *known[:-1]]), known[-1], strangers


def _counting(random: Random) -> Item:
    first = random.randrange(1, 96)
    return " ".join(map(str, range(first, first + 4))), str(first + 4), [str(first + other) for other in (3, 5, 14)]
