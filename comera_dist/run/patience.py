"""The lowest validation loss of a run, and how long it goes on without a lower one (`train.stop_early`)."""

import math
from typing import Any

from comera_dist.config.train_section import StopEarly


class Patience:
    """Counts the validations in a row that improved the best loss by less than `min_delta` nats.

    It is the same on all processes, because the validation loss is. `best_step` is the step of the best loss.
    """

    def __init__(self, config: StopEarly):
        self._config = config
        self.best, self.fruitless = math.inf, 0
        self.best_step: int | None = None
        self.judged_step = 0  # the last step whose validation was judged

    @property
    def is_exhausted(self) -> bool:
        """Whether the run must end."""
        return self._config.patience is not None and self.fruitless >= self._config.patience

    def judge(self, step: int, loss: float) -> None:
        """Counts the validation after `step` steps. A step counts once."""
        if step <= self.judged_step:
            return
        self.judged_step = step
        improves = loss < self.best and self.best - loss >= self._config.min_delta
        self.fruitless = 0 if improves else self.fruitless + 1
        if improves:
            self.best, self.best_step = loss, step

    def pass_over(self, step: int) -> None:
        """Notes a validation that does not count."""
        self.judged_step = step

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint."""
        best = None if math.isinf(self.best) else self.best
        return {"best": best, "best_step": self.best_step, "fruitless": self.fruitless, "judged_step": self.judged_step}

    def load(self, state: dict[str, Any]) -> None:
        self.best = math.inf if state["best"] is None else state["best"]
        self.best_step = state.get("best_step")  # absent in earlier versions
        self.fruitless, self.judged_step = state["fruitless"], state["judged_step"]
