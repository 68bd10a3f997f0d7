"""Which steps are bad: a loss that is not finite, or one far above the losses before it."""

import math
import statistics
from collections import deque
from typing import Any

WINDOW = 64  # losses of which mean and deviation are taken; chosen: enough for both, and few against a run's length


class LossWatch:
    """Knows the losses of the last good steps, and how many steps in a row were bad.

    A loss that lies more than `deviations` standard deviations above their mean is a spike (0: none is). It is the same
    on all processes, because the loss is.
    """

    def __init__(self, deviations: float):
        self._deviations = deviations
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self.bad_in_a_row = 0

    @property
    def limit(self) -> float:
        """The largest loss that is good."""
        if not self._deviations or len(self._losses) < WINDOW:
            return math.inf
        return statistics.fmean(self._losses) + self._deviations * statistics.pstdev(self._losses)

    def accepts(self, loss: float) -> bool:
        return math.isfinite(loss) and loss <= self.limit

    def note(self, loss: float, is_good: bool) -> None:
        """Notes a step, in their order."""
        if is_good:
            self._losses.append(loss)
        self.bad_in_a_row = 0 if is_good else self.bad_in_a_row + 1

    def forget(self) -> None:
        """Forgets the losses: those of a larger model would make spikes of all that follow a cut of ranks."""
        self._losses.clear()

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint."""
        return {"losses": list(self._losses), "bad_in_a_row": self.bad_in_a_row}

    def load(self, state: dict[str, Any]) -> None:
        self._losses.extend(state["losses"])
        self.bad_in_a_row = state["bad_in_a_row"]
