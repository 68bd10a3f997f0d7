"""Solved examples before items: how many a task gets, and that any number of processes draws the same ones."""

from types import SimpleNamespace

import pytest
from lm_eval.api.samplers import ContextSampler
from local_tasks import NAMES

from comera_dist.errors import ConfigError
from comera_dist.judge.shots import DrawsOfAll
from comera_dist.judge.tasks import judge_on_tasks
from comera_dist.runtime.processes import alone

POOL = [{"noun": noun} for noun in ("cat", "cats", "dog", "cat", "cat", "fox")]  # equal ones are drawn again


def draws(index, count, items, given):
    """What a process draws for its items."""
    sampler = ContextSampler(POOL).set_rnd(7)
    task = SimpleNamespace(config=SimpleNamespace(task="x"), sampler=sampler, eval_docs=items)
    shared = DrawsOfAll(task, SimpleNamespace(index=index, count=count))
    return [shared.sample(n=2, eval_doc=item if given else None) for item in items[index::count]]


@pytest.mark.parametrize("given", [True, False], ids=["items are examples too", "other examples"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_item_has_the_examples_that_lm_eval_draws(count, given):
    items, sampler = POOL * 3, ContextSampler(POOL).set_rnd(7)
    expected = [sampler.sample(n=2, eval_doc=item if given else None) for item in items]
    assert len({str(one) for one in expected}) > 3
    for index in range(count):
        assert draws(index, count, items, given) == expected[index::count]


@pytest.mark.parametrize(("own", "asked", "shots"), [(0, 2, 0), (1, None, 1), (1, 0, 0), (1, 2, 2)])
def test_a_task_may_have_a_number_of_its_own(judged_run, task_folder, tmp_path, own, asked, shots):
    settings = (task_folder / "agreement.yaml").read_text()
    (tmp_path / "own.yaml").write_text(settings.replace("local_agreement", "own") + f"num_fewshot: {own}\n")
    first, again = (judge_on_tasks(judged_run, alone(), None, ["own"], tmp_path, 3, asked) for _ in range(2))
    assert first == again
    assert first["tasks"]["own"].get("shots", 0) == shots


def test_more_examples_than_a_task_has_are_refused(judged_run, task_folder):
    told = r"the task local_agreement has no 10 examples to draw \(.*\); give fewer with --shots"
    with pytest.raises(ConfigError, match=told):
        judge_on_tasks(judged_run, alone(), None, NAMES, task_folder, None, 10)
    with pytest.raises(ConfigError, match="the task comera_counting has no 11 examples to draw"):
        judge_on_tasks(judged_run, alone(), None, ["comera_counting"], None, 2, 11)


def test_the_suite_has_examples_of_its_own(judged_run):
    first, again = (judge_on_tasks(judged_run, alone(), None, ["comera_suite"], None, 4, 2) for _ in range(2))
    assert first == again
    assert [metrics["shots"] for metrics in first["tasks"].values()] == [2] * 5
