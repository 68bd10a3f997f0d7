"""The rows of each optimizer step, where the batch may grow at the beginning of a run (`train.batch_ramp`)."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSizes:
    """The batch of step s, counted from 0: `whole` rows from step `steps` on, and before that a multiple of `start`.

    Every multiple of `start` below `whole` takes an equal share of the first `steps` steps. The sizes are a pure
    function of the step, so a resume needs no state.
    """

    whole: int
    start: int
    steps: int = 0

    def at(self, step: int) -> int:
        """Rows of the optimizer step that follows `step` finished ones."""
        return self.whole if step >= self.steps else self.start * (1 + step * self._sizes // self.steps)

    def before(self, step: int) -> int:
        """Rows of the first `step` steps together."""
        growing = min(step, self.steps)
        units = growing + (_sum_of_floors(growing, self._sizes, self.steps) if growing else 0)
        return self.start * units + self.whole * (step - growing)

    def steps_of(self, rows: int) -> int:
        """The smallest number of steps that read `rows` rows or more."""
        left = rows - self.before(self.steps)
        return (
            bisect_left(range(self.steps), rows, key=self.before) if left <= 0 else self.steps + -(-left // self.whole)
        )

    @property
    def _sizes(self) -> int:
        """Multiples of `start` below `whole`."""
        return self.whole // self.start - 1


def _sum_of_floors(n: int, a: int, m: int) -> int:
    """The sum of floor(a * i / m) over i = 0 … n - 1, for positive n, a and m.

    Counts lattice points below the line by Euclid's algorithm: each turn swaps the two axes.
    """
    total, b = 0, 0
    while n and a:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        n, b = divmod(a * n + b, m)
        a, m = m, a
    return total
