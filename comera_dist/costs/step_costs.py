"""What each layer costs in a training step, and by which path it is computed; no tensor is made.

Shapes: T tokens (a DLRM: rows) of one process's step, N inputs, M outputs of a matrix.
"""

import re
from dataclasses import dataclass

from comera_dist.config.tree import Config
from comera_dist.formats.plan import LayerPlan, Plan
from comera_dist.formats.tensor_train.contraction_plan import PATHS, plan_contraction
from comera_dist.formats.tensor_train.lookup_plan import lookup_cost, plan_lookup
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
    counts: dict[tuple[str, LayerPlan, int], int] = {}
    for name, layer in plan.items():
        row = (re.sub(r"\.\d+\.", ".*.", name), layer, round(tokens * kind.token_share(config, name)))
        counts[row] = counts.get(row, 0) + 1
    rows = [(row[0], count, *_cost(*row, device_type, itemsize)) for row, count in counts.items()]
    rows += [
        (work.name, work.count, work.path, *_work_cost(work, tokens, itemsize))
        for work in kind.unplanned_work(config, plan)
    ]
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


def _work_cost(work: Work, tokens: int, itemsize: int) -> tuple[int, int]:
    """FLOPs and bytes, forward and backward, of one of the equal pieces of work that no planned layer does."""
    flops = round(3 * tokens * work.flops_per_token) + 3 * work.flops_once
    return flops, 3 * itemsize * (round(tokens * work.numbers_per_token) + work.numbers_once)
