"""What each layer costs in a training step, and by which path it is computed; no tensor is made.

Shapes: T tokens (a DLRM: rows) of one process's step, N inputs, M outputs of a matrix.
"""

import re
from dataclasses import dataclass

from comera_dist.config.tree import Config
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.plan import Plan
from comera_dist.models.family import kind_of
from comera_dist.models.work import Work


@dataclass(frozen=True)
class LayerCost:
    """Forward and backward of all `count` layers of one kind; `name` has a star for the number of the block."""

    name: str
    count: int
    path: str
    flops: int
    bytes_moved: int
    share: float  # of the step's FLOPs


def step_costs(config: Config, plan: Plan, tokens: int, device_type: str) -> list[LayerCost]:
    """Costs of a step over `tokens` tokens, layers of equal shape and name together, attention last.

    Bytes count every factor and result of a product once; FLOPs are multiply-adds x 2. Norms, activations and the
    optimizer are not counted.
    """
    kind, itemsize = kind_of(config.model), 2 if config.train.precision == "bf16" else 4
    counts: dict[tuple[str, MatrixPlan, int], int] = {}
    for name, layer in plan.items():
        alike = (re.sub(r"\.\d+\.", ".*.", name), layer, round(tokens * kind.token_share(config, name)))
        counts[alike] = counts.get(alike, 0) + 1
    rows = []
    for (name, layer, seen), count in counts.items():
        cost = layer.step_cost(seen, device_type, itemsize, is_head=name == kind.logits_layer)
        rows.append((name, count, cost.path, cost.flops, cost.bytes_moved))
    rows += [
        (work.name, work.count, work.path, *_work_cost(work, tokens, itemsize))
        for work in kind.unplanned_work(config, plan)
    ]
    total = sum(count * flops for _, count, _, flops, _ in rows)
    return [
        LayerCost(name, count, path, count * flops, count * moved, count * flops / total)
        for name, count, path, flops, moved in rows
    ]


def _work_cost(work: Work, tokens: int, itemsize: int) -> tuple[int, int]:
    """FLOPs and bytes, forward and backward, of one of the equal pieces of work that no planned layer does."""
    flops = round(3 * tokens * work.flops_per_token) + 3 * work.flops_once
    return flops, 3 * itemsize * (round(tokens * work.numbers_per_token) + work.numbers_once)
