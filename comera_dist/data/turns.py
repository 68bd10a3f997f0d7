"""Which of several data sets gives the next row, so that each keeps to its share at every moment.

The sequence is a Pfair schedule (Baruah, Cohen, Plaxton and Varvel 1996, "Proportionate progress: a notion of fairness
in resource allocation"). A data set of share w gives its j-th row at one of the places floor((j-1) / w) to
ceil(j / w) - 1, so after n rows it has given more than w·n - 1 and fewer than w·n + 1. The earliest deadline goes
first. This meets all deadlines, because such a schedule exists for shares that sum to 1.

Shapes: Q places of a period.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from comera_dist.config.data_section import period_of


def turns(shares: Sequence[Fraction]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of the data set that gives each row of a period, and how many rows it has given before; both (Q,).

    `shares` are positive and sum to 1.
    """
    period = period_of(shares)
    quotas = [int(share * period) for share in shares]
    given = [0] * len(shares)
    turn_Q, before_Q = np.empty(period, dtype=np.int64), np.empty(period, dtype=np.int64)
    for place in range(period):
        ready = (i for i, quota in enumerate(quotas) if given[i] * period < (place + 1) * quota)
        chosen = min(ready, key=lambda i: -(-(given[i] + 1) * period // quotas[i]))  # the first of equal deadlines
        turn_Q[place], before_Q[place] = chosen, given[chosen]
        given[chosen] += 1
    return turn_Q, before_Q
