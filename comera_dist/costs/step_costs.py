"""What each layer costs in a training step, and by which path it is computed; no tensor is made.

Shapes: T tokens (a DLRM: rows) of one process's step, N inputs, M outputs of a matrix.
"""

import re
from collections import Counter
from dataclasses import dataclass

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import FORWARD_AND_BACKWARD
from comera_dist.formats.base import BF16, FP32
from comera_dist.formats.plan import Plan
from comera_dist.models.family import kind_of


@dataclass(frozen=True)
class LayerCost:
    """Forward and backward of `count` equal layers; in `name` a star stands for the number of the block."""

    name: str
    count: int
    path: str
    flops: int
    bytes_moved: int
    share: float  # of the step's FLOPs


def product_itemsize(precision: str) -> int:
    """Bytes of a number in the products of a `train.precision`; for fp8 those of attention and the head, in bf16."""
    return FP32 if precision == "fp32" else BF16


def step_costs(config: Config, plan: Plan, tokens: int, device_type: str) -> list[LayerCost]:
    """Costs of a step over `tokens` tokens; layers of equal shape and name share a row, and attention comes last.

    Bytes count every factor and result of a product once; FLOPs are multiply-adds × 2. Norms, activations and the
    optimizer are not counted.
    """
    kind, itemsize = kind_of(config.model), product_itemsize(config.train.precision)
    alike = Counter(
        (re.sub(r"\.\d+\.", ".*.", name), layer, round(tokens * kind.token_share(config, name)))
        for name, layer in plan.items()
    )
    rows = []
    for (name, layer, seen), count in alike.items():
        cost = layer.step_cost(seen, device_type, itemsize, is_head=name == kind.logits_layer)
        rows.append((name, count, cost.path, cost.flops, cost.bytes_moved))
    for work in kind.unplanned_work(config, plan):
        flops = round(FORWARD_AND_BACKWARD * tokens * work.flops_per_token) + FORWARD_AND_BACKWARD * work.flops_once
        moved = FORWARD_AND_BACKWARD * itemsize * (round(tokens * work.numbers_per_token) + work.numbers_once)
        rows.append((work.name, work.count, work.path, flops, moved))
    total = sum(count * flops for _, count, _, flops, _ in rows)
    return [
        LayerCost(name, count, path, count * flops, count * moved, count * flops / total)
        for name, count, path, flops, moved in rows
    ]
