"""The items of the package's own tasks: each has one right choice, by rules that do not know how items are made."""

import pytest

from comera_dist.judge.suite import items
from comera_dist.judge.tasks import SUITE, judge_on_tasks
from comera_dist.runtime.processes import alone

OPENING = {")": "(", "]": "[", "}": "{"}
PLURAL = {"are", "were", "have", "do"}


def closes_the_last_one(text: str, choice: str) -> bool:
    open_ones = []
    for bracket in text.split():
        if bracket in OPENING:
            assert open_ones.pop() == OPENING[bracket], "the text itself is balanced"
        else:
            open_ones.append(bracket)
    return OPENING[choice] == open_ones[-1]


def follows_in_the_repetition(text: str, choice: str) -> bool:
    words = text.split()
    assert words[5:] == words[:4]
    return choice == words[4]


def agrees(text: str, choice: str) -> bool:
    return (text.split()[-1] in ("we", "you", "they")) == (choice in PLURAL)


def agrees_far(text: str, choice: str) -> bool:
    return (text.split()[1].endswith("s") or text.split()[1] == "children") == (choice in PLURAL)


RULES = {
    "agreement": agrees,
    "agreement_far": agrees_far,
    "brackets": closes_the_last_one,
    "copying": follows_in_the_repetition,
    "counting": lambda text, choice: int(choice) == int(text.split()[-1]) + 1,
}


@pytest.mark.parametrize("task", RULES)
def test_one_choice_is_right(task):
    rows = list(getattr(items, task)()["test"])
    assert len(rows) == 200
    for row in rows:
        right = [RULES[task](row["text"], choice) for choice in row["choices"]]
        assert right == [index == row["answer"] for index in range(len(right))]
    texts = {row["text"] for row in rows}
    assert len(texts) > 60  # items differ
    for index in range(len(rows[0]["choices"])):  # no place is the right one much too often
        share = sum(row["answer"] == index for row in rows) / len(rows)
        assert share == pytest.approx(1 / len(rows[0]["choices"]), abs=0.12)


@pytest.mark.parametrize("task", RULES)
def test_items_are_the_same_at_every_call(task):
    make = getattr(items, task)
    for split in ("train", "test"):
        assert list(make()[split]) == list(make(model="other")[split])


@pytest.mark.parametrize("task", RULES)
def test_examples_are_right_and_not_in_the_test(task):
    splits = getattr(items, task)()
    tested = {row["text"] for row in splits["test"]}
    texts = {row["text"] for row in splits["train"]}
    assert len(texts) == len(splits["train"]) == items.EXAMPLES
    assert not texts & tested
    for row in splits["train"]:
        assert RULES[task](row["text"], row["choices"][row["answer"]])


def test_far_subjects_have_nouns_of_both_numbers_behind_them():
    numbers = {
        (row["text"].split()[1].endswith("s"), row["text"].endswith("s")) for row in items.agreement_far()["test"]
    }
    assert numbers == {(one, other) for one in (True, False) for other in (True, False)}


def test_every_task_is_answered_without_a_folder_or_a_network(judged_run):
    tasks = judge_on_tasks(judged_run, alone(), None, ["comera_suite"], None, 3)["tasks"]
    assert (
        {name.removeprefix("comera_") for name in tasks} == RULES.keys() == {path.stem for path in SUITE.glob("*.yaml")}
    )
    assert all(metrics["items"] == 3 and 0 <= metrics["acc"] <= 1 for metrics in tasks.values())
