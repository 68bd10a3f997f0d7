"""The step of a deep model, from those of the same model with two and three blocks.

A step of 80 blocks without values takes half a minute. Blocks of one shape cost the same, so a step costs as much more
for each block as one of three blocks costs more than one of two.
"""

import re
from collections.abc import Iterable
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.costs.live_memory import BlankStep
from comera_dist.costs.memory import step_of
from comera_dist.costs.operations import Work
from comera_dist.formats.base import FP32, MatrixPlan
from comera_dist.formats.plan import Plan

_BLOCK = re.compile(r"(^|\.)(layers?)\.(\d+)\.(.+)")
COUNTED = (2, 3)  # blocks; the first block alone is not enough, because its input needs no gradient


def deep_step(config: Config, plan: Plan, rows: int, micro_batches: int, frees_gradients: bool = False) -> BlankStep:
    """`memory.step_of` in a few seconds, whatever the depth.

    Operations are exact. The peak is exact or too large, up to the gradients of norms: it is the larger of two sums.
    One grows with each block by its activations, the other one by its gradients; both are taken to grow by the larger.
    """
    depth = getattr(config.model, "layers", 0)
    if depth <= COUNTED[-1] or not _are_alike(plan, depth):
        return step_of(config, plan, rows, micro_batches, frees_gradients)
    few, more = (
        step_of(_with_depth(config, count), _first_blocks(plan, count), rows, micro_batches, frees_gradients)
        for count in COUNTED
    )
    kept, grown = more.kept - few.kept, more.peak - few.peak
    gradients = 0 if frees_gradients else _block_bytes(plan)
    slope = kept + gradients if micro_batches > 1 else max(kept, gradients)
    further = depth - COUNTED[-1]
    work = Work(more.work)
    for operation in {*few.work, *more.work}:  # a batch of products over all blocks has another size at each depth
        work[operation] += further * (more.work[operation] - few.work[operation])
    return BlankStep(more.kept + further * kept, more.peak + further * max(slope, grown), work)


def _are_alike(plan: Plan, depth: int) -> bool:
    blocks: dict[int, dict[str, MatrixPlan]] = {}
    for name, layer in plan.items():
        if match := _BLOCK.search(name):
            blocks.setdefault(int(match[3]), {})[match[4]] = layer
    return len(blocks) == depth and all(block == blocks[0] for block in blocks.values())


def _first_blocks(plan: Plan, count: int) -> Plan:
    return {name: layer for name, layer in plan.items() if not (m := _BLOCK.search(name)) or int(m[3]) < count}


def _block_bytes(plan: Plan) -> int:
    """Of the weights of one block, without norms and biases, which are small."""
    layers: Iterable[MatrixPlan] = (plan[name] for name in plan if (m := _BLOCK.search(name)) and m[3] == "0")
    return FP32 * sum(layer.parameters for layer in layers)


def _with_depth(config: Config, count: int) -> Config:
    changed: Any = config.model.model_copy(update={"layers": count})
    return config.model_copy(update={"model": changed})
