"""What each layer costs in a training step, and by which path it is computed; no tensor is made.

Shapes: T tokens (a DLRM: rows) of one process's step, N inputs, M outputs of a matrix.
"""

import re
from dataclasses import dataclass

from comera_dist.config.tree import Config
from comera_dist.formats.plan import LayerPlan, Plan
from comera_dist.formats.tensor_train.contraction_plan import PATHS, plan_contraction
from comera_dist.formats.tensor_train.lookup_plan import lookup_cost, plan_lookup
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
    counts: dict[tuple[str, LayerPlan, int], int] = {}
    for name, layer in plan.items():
        kind = (re.sub(r"\.\d+\.", ".*.", name), layer, round(tokens * token_share(config, name, layer)))
        counts[kind] = counts.get(kind, 0) + 1
    rows = [(kind[0], count, *_cost(*kind, device_type, itemsize)) for kind, count in counts.items()]
    rows += _unplanned(config, plan, tokens, itemsize)
    total = sum(count * flops for _, count, _, flops, _ in rows)
    return [
        LayerCost(name, count, path, count * flops, count * moved, count * flops / total)
        for name, count, path, flops, moved in rows
    ]


def _cost(name: str, layer: LayerPlan, tokens: int, device_type: str, itemsize: int) -> tuple[str, int, int]:
    """Path, FLOPs and bytes of one layer."""
    if layer.is_removed:
        return "removed", 0, 0
    if layer.is_embedding:
        return _lookup(layer, tokens, device_type)
    if layer.shape is not None:
        # The loss is computed from the head's narrow intermediate and its out-side.
        among = ("sides",) if name == "lm_head" else PATHS
        plan = plan_contraction(layer.shape, tokens, device_type, itemsize, among)
        return plan.path, plan.flops, plan.bytes_moved
    return "weight", *_product(tokens, layer.inputs, layer.outputs, itemsize)


def _product(tokens: int, n: int, m: int, itemsize: int) -> tuple[int, int]:
    """FLOPs and bytes of (T, N) x (N, M), forward and backward."""
    return 6 * tokens * n * m, 3 * itemsize * (tokens * n + n * m + tokens * m)


def _lookup(layer: LayerPlan, tokens: int, device_type: str) -> tuple[str, int, int]:
    """Rows are gathered forward and summed backward; at most all tokens are distinct."""
    rows = min(tokens, layer.inputs)
    moved = 2 * 4 * 2 * tokens * layer.outputs
    if layer.shape is None or not layer.shape.bonds:
        return "lookup", 0, moved
    parts = "+".join(str(stop - first) for first, stop in plan_lookup(layer.shape, rows, device_type))
    flops, numbers = lookup_cost(layer.shape, rows, device_type)
    return f"distinct rows, cores {parts}", 3 * flops, moved + 3 * 4 * numbers


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
    path = "weight" if table.shape is None else "merged table"
    flops, moved = _product(predicted, table.outputs, table.inputs, itemsize)
    return [("tied head", 1, path, flops + 3 * tied_merge_flops(config, plan), moved), attention]


def _attention(config: Config, tokens: int, itemsize: int) -> tuple[int, int]:
    """A token of a decoder sees half of the sequence on average; queries, keys, values and result are moved, scores are
    not."""
    width, seen = config.model.d_model, config.data.seq_len / (2 if config.model.kind == "decoder" else 1)
    return round(12 * tokens * seen * width), 3 * itemsize * 4 * tokens * width
