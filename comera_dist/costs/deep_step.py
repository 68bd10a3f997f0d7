"""The step of a deep model, from those of the same model with few blocks and one block more.

A step of 80 blocks without values takes half a minute. Blocks of one shape cost the same, so a step costs as much more
for each block as one of three blocks costs more than one of two. First blocks may differ, as those that own shared
matrices do: they are among the few.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.costs.live_memory import BlankStep
from comera_dist.costs.memory import step_of
from comera_dist.costs.operations import Work
from comera_dist.formats.base import FP32, MatrixPlan
from comera_dist.formats.plan import Plan

_BLOCK = re.compile(r"(^|\.)(layers?)\.(\d+)\.(.+)")
FEWEST = 2  # blocks; the first block alone is not enough, because its input needs no gradient


def deep_step(config: Config, plan: Plan, rows: int, micro_batches: int, frees_gradients: bool = False) -> BlankStep:
    """`memory.step_of` in a few seconds, whatever the depth.

    Operations are exact. The peak is exact or too large, up to the gradients of norms: it is the larger of two sums.
    One grows with each block by its activations, the other one by its gradients; both are taken to grow by the larger.
    """
    depth = getattr(config.model, "layers", 0)
    count = _blocks_until_alike(plan, depth)
    if count + 1 >= depth:
        return step_of(config, plan, rows, micro_batches, frees_gradients)
    few, more = (
        step_of(_with_depth(config, blocks), _first_blocks(plan, blocks), rows, micro_batches, frees_gradients)
        for blocks in (count, count + 1)
    )
    kept, grown = more.kept - few.kept, more.peak - few.peak
    gradients = 0 if frees_gradients else _block_bytes(plan, depth - 1)
    slope = kept + gradients if micro_batches > 1 else max(kept, gradients)
    further = depth - count - 1
    work = Work(more.work)
    for operation in {*few.work, *more.work}:  # a batch of products over all blocks has another size at each depth
        work[operation] += further * (more.work[operation] - few.work[operation])
    return BlankStep(more.kept + further * kept, more.peak + further * max(slope, grown), work)


def _blocks_until_alike(plan: Plan, depth: int) -> int:
    """The number of first blocks, at least `FEWEST`, of which the last one is like all later ones; else `depth`."""
    blocks: dict[int, dict[str, Any]] = defaultdict(dict)
    for name, layer in plan.items():
        if match := _BLOCK.search(name):
            blocks[int(match[3])][match[4]] = (type(layer), layer.dense_size, layer.tensors)
    if len(blocks) != depth:  # not all layers of the configuration are blocks
        return depth
    alike = next((n for n in range(1, depth) if blocks[depth - 1 - n] != blocks[depth - 1]), depth)
    return max(FEWEST, depth - alike + 1)


def _first_blocks(plan: Plan, count: int) -> Plan:
    return {name: layer for name, layer in plan.items() if not (m := _BLOCK.search(name)) or int(m[3]) < count}


def _block_bytes(plan: Plan, block: int) -> int:
    """Of the weights of one block, without norms and biases, which are small."""
    layers: Iterable[MatrixPlan] = (plan[name] for name in plan if (m := _BLOCK.search(name)) and int(m[3]) == block)
    return FP32 * sum(layer.parameters for layer in layers)


def _with_depth(config: Config, count: int) -> Config:
    changed: Any = config.model.model_copy(update={"layers": count})
    return config.model_copy(update={"model": changed})
