"""Decides how rows of a table stored as a tensor-train matrix are computed: into which parts its train is cut.

A part is one core, or several neighbouring ones merged into a table of row blocks (A, V, E, B). A row of the table is
the product of one block of every part. Large parts are expensive to merge, many small parts expensive for every row.
Pure Python, so that a plan can be made before any tensor exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import prod
from typing import TYPE_CHECKING

from comera_dist.formats.base import FP32, Product
from comera_dist.formats.kernel_costs import MARGIN, Kernels, kernels_of, power_of_two
from comera_dist.formats.planned import planned
from comera_dist.formats.tensor_train.merge_order import merge_products

if TYPE_CHECKING:
    from comera_dist.formats.tensor_train.train_shapes import TTMShape

Parts = tuple[tuple[int, int], ...]  # the first core of each part and the core behind its last one


def plan_lookup(shape: TTMShape, rows: int, device_type: str = "cpu") -> Parts:
    """The parts that compute `rows` distinct rows soonest, by FLOPs and bytes on the device.

    Every product of the forward pass has two of its size in the backward pass, whatever the parts. Numbers of rows
    share a plan up to the next power of two.
    """
    return _plan(shape, power_of_two(rows), device_type)


def lookup_cost(shape: TTMShape, rows: int, device_type: str = "cpu", parts: Parts | None = None) -> tuple[int, int]:
    """FLOPs and numbers moved of a forward pass that computes `rows` distinct rows, merging included.

    The train is cut into `parts`, by default those of `plan_lookup`; of two plain factors all rows multiply the second
    one together. Every factor and result of a product is moved once.
    """
    if parts is None and shape.table_rank is not None:
        product = Product(rows, shape.table_rank, shape.outputs)
        return product.flops, product.numbers
    parts = plan_lookup(shape, rows, device_type) if parts is None else parts
    products = [(rows, product) for product in _row_products(shape, parts)]
    products += [(1, product) for part in parts for product in _merges(shape, part)]
    flops = sum(count * product.flops for count, product in products)
    return flops, sum(count * product.numbers for count, product in products)


@planned
def _plan(shape: TTMShape, rows: int, device_type: str) -> Parts:
    kernels, cores = kernels_of(device_type, FP32), len(shape.core_modes)
    halves = ((0, shape.left_cores), (shape.left_cores, cores))

    def price(parts: Parts) -> float:
        # Any other way must be clearly cheaper than the two halves that hold the fewest numbers.
        return _seconds(shape, parts, rows, kernels) * (MARGIN if parts == halves else 1.0)

    return min(_ways_to_cut(cores), key=price)


def _ways_to_cut(cores: int) -> Iterator[Parts]:
    for count in range(cores):
        for cuts in combinations(range(1, cores), count):
            yield tuple(pairwise((0, *cuts, cores)))


def _seconds(shape: TTMShape, parts: Parts, rows: int, kernels: Kernels) -> float:
    """Seconds of a forward pass: merging each part, gathering a block of each for every row, multiplying blocks."""
    seconds = sum(kernels.batch_seconds(product, rows) for product in _row_products(shape, parts))
    for first, stop in parts:
        left, width, right = shape.ranks[first], prod(shape.out_modes[first:stop]), shape.ranks[stop]
        # A table behind a bond is brought into the order of its blocks first.
        reordered = left * prod(shape.core_sizes[first:stop]) * right if left > 1 else 0
        gathered = 2 * FP32 * (rows * left * width * right + reordered)
        seconds += max(gathered / kernels.bandwidth, kernels.launch)
        merges = _merges(shape, (first, stop))
        seconds += sum(kernels.seconds(product, FP32, permutes=True) for product in merges)
    return seconds


def _row_products(shape: TTMShape, parts: Parts) -> list[Product]:
    """The products of the blocks of one row."""
    bonds = (*(shape.ranks[first] for first, _ in parts), 1)
    return merge_products(bonds, tuple(prod(shape.out_modes[first:stop]) for first, stop in parts))


def _merges(shape: TTMShape, part: tuple[int, int]) -> list[Product]:
    """The products of merging the cores of a part into a table of row blocks."""
    first, stop = part
    return merge_products(shape.ranks[first : stop + 1], shape.core_sizes[first:stop])
