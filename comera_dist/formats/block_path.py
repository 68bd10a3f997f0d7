"""Decides how a block tensor train multiplies its input: by its blocks, or by its merged weight.

Shapes: T tokens; n in-blocks of c, m out-blocks of b, r rank as in block_train.py.
Pure Python, so that a path can be printed before any tensor exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from comera_dist.formats.base import BF16, FP32, Product, StepCost
from comera_dist.formats.kernel_costs import kernels_of, power_of_two
from comera_dist.formats.planned import planned

if TYPE_CHECKING:
    from comera_dist.formats.block_train import BlockTrainPlan

Path = Literal["blocks", "weight"]

# Products of blocks take this much longer than their FLOPs and bytes say, by device and bytes of a number.
# cpu, fp32: fitted to 77 pairs of times on one thread of the CPU of `KERNELS` (64 to 2,048 features, ranks 1 to 16, 128
# to 4,096 tokens): all choices are right there, and 73 on two threads, where the worst takes 23% longer than the best.
# With the products of `ops.cpu_products` 19 of 20 are right on two threads of an AMD EPYC (benchmarks/blocks.py).
# cpu, bf16: fitted with its rates to 240 pairs on one and two threads of an Intel Xeon with AMX (128 to 2,048 features,
# 512 and 2,048 tokens): layers take 1.2% longer than by the best choices, and took 29% longer with the figures of fp32.
# cuda: on an H200 4,096 x 4,096 of rank 8 with 16,384 tokens take 2.3 ms by blocks and 2.8 ms by the weight, for which
# FLOPs and bytes say 1.13 times; smaller layers wait for launches.
OF_BLOCKS = {("cpu", FP32): 1.5, ("cpu", BF16): 3.0, ("cuda", FP32): 1.1, ("cuda", BF16): 1.1}


def cheapest_path(plan: BlockTrainPlan, tokens: int, device_type: str, itemsize: int) -> Path:
    """The faster path of a forward and backward pass, by FLOPs and bytes on the device.

    Token counts share a choice up to the next power of two.
    """
    return _cheapest(plan, power_of_two(tokens), device_type, itemsize)


@planned
def path_cost(plan: BlockTrainPlan, path: Path, tokens: int, itemsize: int) -> StepCost:
    """What a training step over `tokens` tokens costs by a path."""
    if path == "weight":
        merge = StepCost.of_products(path, FP32, merge_product(plan))
        return merge + StepCost.of_products(path, itemsize, Product(tokens, plan.inputs, plan.outputs))
    products = [product for count, product in _of_blocks(plan, tokens) for _ in range(count)]
    return StepCost.of_products(path, itemsize, *products)


def merge_product(plan: BlockTrainPlan) -> Product:
    """The products that merge both factors to the weight or table, as one."""
    (n, c), (m, b) = plan.in_blocks, plan.out_blocks
    return Product(n * c, plan.rank, m * b)


@planned
def _cheapest(plan: BlockTrainPlan, tokens: int, device_type: str, itemsize: int) -> Path:
    kernels, whole = kernels_of(device_type, itemsize), Product(tokens, plan.inputs, plan.outputs)
    blocks = sum(kernels.seconds(product, itemsize, False, count) for count, product in _of_blocks(plan, tokens))
    merging = kernels_of(device_type, FP32).seconds(merge_product(plan), FP32, False)
    weight = kernels.seconds(whole, itemsize, False) + merging
    return "weight" if weight < OF_BLOCKS.get((device_type, itemsize), OF_BLOCKS["cpu", FP32]) * blocks else "blocks"


def _of_blocks(plan: BlockTrainPlan, tokens: int) -> list[tuple[int, Product]]:
    """The product of every in-block, then that of every out-block, as (how many, each)."""
    (n, c), (m, b), r = plan.in_blocks, plan.out_blocks, plan.rank
    return [(n, Product(tokens, c, m * r)), (m, Product(tokens, n * r, b))]
