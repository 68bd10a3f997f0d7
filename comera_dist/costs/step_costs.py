"""What each layer costs in a training step, and by which path it is computed; no tensor is made.

Shapes: T tokens (a DLRM: rows) of one process's step, N inputs, M outputs of a matrix.
"""

import re
from dataclasses import dataclass

from comera_dist.config.tree import Config
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.dense import DensePlan, product_cost
from comera_dist.formats.plan import Plan
from comera_dist.models.planning import head_share, tied_merge_flops, tied_table, token_share, unplanned_flops


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
    itemsize = 2 if config.train.precision == "bf16" else 4
    counts: dict[tuple[str, MatrixPlan, int], int] = {}
    for name, layer in plan.items():
        kind = (re.sub(r"\.\d+\.", ".*.", name), layer, round(tokens * token_share(config, name, layer)))
        counts[kind] = counts.get(kind, 0) + 1
    rows = []
    for (name, layer, seen), count in counts.items():
        cost = layer.step_cost(seen, device_type, itemsize, is_head=name == "lm_head")
        rows.append((name, count, cost.path, cost.flops, cost.bytes_moved))
    rows += _unplanned(config, plan, tokens, itemsize)
    total = sum(count * flops for _, count, _, flops, _ in rows)
    return [
        LayerCost(name, count, path, count * flops, count * moved, count * flops / total)
        for name, count, path, flops, moved in rows
    ]


def _unplanned(config: Config, plan: Plan, tokens: int, itemsize: int) -> list[tuple[str, int, str, int, int]]:
    """Rows of what no planned layer computes."""
    model = config.model
    if model.kind == "dlrm":
        return [("interaction", 1, "dot products", round(3 * tokens * unplanned_flops(config, plan)), 0)]
    attention = ("attention", model.layers, "scaled dot product", *_attention(config, tokens, itemsize))
    table = tied_table(config, plan)
    if table is None:
        return [attention]
    predicted = tokens if model.kind == "decoder" else round(tokens * head_share(config))
    path = "weight" if isinstance(table, DensePlan) else "merged table"
    flops, moved = product_cost(predicted, table.outputs, table.inputs, itemsize)
    return [("tied head", 1, path, flops + 3 * tied_merge_flops(config, plan), moved), attention]


def _attention(config: Config, tokens: int, itemsize: int) -> tuple[int, int]:
    """A token of a decoder sees half of the sequence on average; queries, keys, values and result are moved, scores are
    not."""
    width, seen = config.model.d_model, config.data.seq_len / (2 if config.model.kind == "decoder" else 1)
    return round(12 * tokens * seen * width), 3 * itemsize * 4 * tokens * width
