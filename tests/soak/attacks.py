"""Faults that strike the processes of a run, and how a process must end under them."""

import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGSTOP)
MOMENTS = ("start", "save", "cut", "validation")  # a process marks each as it enters it
INSIDE_SECONDS = 0.03  # chosen: about as long as a save of a tiny model takes


@dataclass(frozen=True)
class Attack:
    """A signal to `target`, `delay` seconds after a process has entered `moment` for the `occurrence`-th time, from 1.

    The target is `one` process of the run (number `process`), `all` of them with their launcher, or the `launcher`. The
    moment `start` has a long delay: it stands for any moment.
    """

    signal: signal.Signals
    target: str
    moment: str
    occurrence: int
    delay: float
    process: int

    @property
    def kind(self) -> str:
        return f"{self.signal.name.removeprefix('SIG')}, {self.target}, {self.moment}"

    def strikes(self, index: int) -> bool:
        """Whether it is meant for the process `index`."""
        return self.target == "all" or (self.target == "one" and self.process == index)


def drawn(seed: int, processes: int, targets: Sequence[str], seconds: float, most: int) -> Iterator[Attack]:
    """`most` random attacks on a run of `processes`: within the first `seconds` of a start, or inside a moment."""
    chance = random.Random(seed)
    for _ in range(most):
        moment = chance.choice(MOMENTS)
        yield Attack(
            chance.choice(SIGNALS),
            chance.choice(targets),
            moment,
            1 if moment == "start" else chance.randint(1, 3),
            chance.uniform(0, seconds if moment == "start" else INSIDE_SECONDS),
            chance.randrange(processes),
        )


def may_end_with(attack: Attack, index: int, status: int | None) -> bool:
    """Whether process `index` may have the exit status `status` after `attack`; None stands for an orphan."""
    allowed = {0, 75}  # it was finished before, or resumes
    if attack.strikes(index):
        allowed.add(-attack.signal)
    return status in allowed
