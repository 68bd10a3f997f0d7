"""Solved examples ("shots") before the items of lm_eval's tasks: how many there are, and which.

They are those of lm_eval's own command with its usual seed, on any number of processes.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from lm_eval.defaults import DEFAULT_OTHER_SEED

from comera_dist.errors import ConfigError, first_line
from comera_dist.runtime.processes import Processes


def set_shots(tasks: Iterable[Any], shots: int | None, processes: Processes) -> None:
    """Gives each task `shots` examples before an item (None: as many as its own file says, or none).

    As in lm_eval's command, a task whose file says 0 keeps that. So does a task that has whole texts and no prompts.
    """
    for task in tasks:
        own = task.get_config("num_fewshot")
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            own = 0
        count = own if shots is None or own == 0 else shots
        task.set_config("num_fewshot", count or 0)
        task.set_fewshot_seed(DEFAULT_OTHER_SEED)
        if hasattr(task, "sampler"):  # a task that is a class of its own may draw in another way
            task.sampler = DrawsOfAll(task, processes)


class DrawsOfAll:
    """The sampler of a task, on one of several processes.

    lm_eval draws the examples of item after item from one generator, and each process has every n-th item. Here a
    process also makes the draws of the items between its own. So an item has the same examples on any number of
    processes.
    """

    def __init__(self, task: Any, processes: Processes):
        self._name, self._sampler, self._items = task.config.task, task.sampler, iter(task.eval_docs)
        self._others, self._between = processes.index, processes.count - 1  # items before the next own one

    def sample(self, n: int, eval_doc: Any = None) -> Sequence[Any]:
        """The `n` examples of the process's next item, which is not among them if it is given as `eval_doc`.

        Raises ConfigError if the task has too few.
        """
        items = list(islice(self._items, self._others + 1))
        self._others = self._between
        return [self._draw(n, None if eval_doc is None else item) for item in items][-1]

    def _draw(self, n: int, item: Any) -> Sequence[Any]:
        try:
            drawn: Sequence[Any] = self._sampler.sample(n, item)
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise ConfigError(
                f"the task {self._name} has no {n} examples to draw ({first_line(error)}); give fewer with --shots"
            ) from error
        return drawn
