"""Decides how a linear layer multiplies its input: through its merged sides, its dense weight, or core by core.

Shapes: T tokens, N in-features, M out-features, R middle rank.
Pure Python, so that a plan can be printed before any tensor exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Literal

from opt_einsum import contract_path, get_symbol

from comera_dist.formats.base import FP32, Product, StepCost
from comera_dist.formats.kernel_costs import MARGIN, Kernels, kernels_of, power_of_two
from comera_dist.formats.planned import planned
from comera_dist.formats.tensor_train.merge_order import merge_products

if TYPE_CHECKING:
    from comera_dist.formats.tensor_train.train_shapes import TTShape

Path = Literal["sides", "dense", "chain"]
PATHS: tuple[Path, ...] = ("sides", "dense", "chain")
Order = tuple[tuple[int, ...], ...]  # of pairs of operands, as opt_einsum counts them


@dataclass(frozen=True)
class ContractionPlan(StepCost):
    """A path of a layer and its cost; of a chain also opt_einsum's equation and the pairs of operands, in order."""

    path: Path
    seconds: float
    equation: str = ""
    order: Order = ()


def plan_contraction(
    shape: TTShape, tokens: int, device_type: str = "cpu", itemsize: int = FP32, among: tuple[Path, ...] = PATHS
) -> ContractionPlan:
    """The cheapest path (of those in `among`) for `tokens` tokens of a forward and backward pass, by FLOPs and bytes.

    `sides`: both sides merged, then two products; `dense`: merged to the whole weight, then one product; `chain`:
    opt_einsum's order over the input and all cores. Every product of the forward pass costs two more of its size in
    the backward pass. Token counts share a plan up to the next power of two, whose cost it has.
    """
    return _plan(shape, power_of_two(tokens), device_type, itemsize, among)


def contraction_cost(
    shape: TTShape, tokens: int, device_type: str = "cpu", itemsize: int = FP32, among: tuple[Path, ...] = PATHS
) -> StepCost:
    """What `tokens` tokens cost by the path of `plan_contraction`, which they share with other token counts."""
    plan = plan_contraction(shape, tokens, device_type, itemsize, among)
    return _along(plan.path, shape, tokens, device_type, itemsize, plan.order)


def padded_rank(rank: int, device_type: str) -> int:
    """The middle rank that a layer computes with; surplus columns are zero.

    On a CPU a product whose narrow side is just below a multiple of 16 (an AVX-512 register of fp32), or below 16, is
    slower than at that multiple: 4,096 tokens x 768 x 30 took 2.1 ms, x 32 took 1.2 ms; at four columns short and more
    it is not (measured as in `KERNELS`). On GPUs 16-bit tensor cores want rows of a multiple of 16 bytes (NVIDIA,
    Matrix Multiplication Background User's Guide).
    """
    multiple = 16 if device_type == "cpu" else 8
    surplus = -rank % multiple
    return rank + surplus if rank < multiple or surplus <= multiple // 4 or device_type != "cpu" else rank


@planned
def _plan(shape: TTShape, tokens: int, device_type: str, itemsize: int, among: tuple[Path, ...]) -> ContractionPlan:
    plans = [_along(path, shape, tokens, device_type, itemsize) for path in among]
    # Core by core keeps more for the backward pass than the merged sides do: it must be clearly cheaper.
    return min(plans, key=lambda plan: plan.seconds / (MARGIN if plan.path == "chain" else 1))


def _along(
    path: Path, shape: TTShape, tokens: int, device_type: str, itemsize: int, order: Order | None = None
) -> ContractionPlan:
    """The plan of one path, core by core in the given order or in the cheapest one."""
    kernels = kernels_of(device_type, itemsize)
    if path == "chain":
        equation, order, products = _chain(shape, tokens, order)
        return replace(_cost(path, kernels, itemsize, products, []), equation=equation, order=order)
    n, m, rank = shape.inputs, shape.outputs, padded_rank(shape.middle_rank, device_type)
    merges = [*merge_products(shape.in_ranks, shape.in_modes), *merge_products(shape.out_ranks, shape.out_modes)]
    if path == "dense":
        return _cost(path, kernels, itemsize, [Product(tokens, n, m)], [*merges, Product(n, rank, m)])
    return _cost(path, kernels, itemsize, [Product(tokens, n, rank), Product(tokens, rank, m)], merges)


def _cost(
    path: Path, kernels: Kernels, itemsize: int, products: list[Product], merges: list[Product]
) -> ContractionPlan:
    """The cost of a path that makes these products and merges in its forward pass."""
    # Cores are merged in fp32 whatever the compute precision.
    cost = StepCost.of_products(path, itemsize, *products) + StepCost.of_products(path, FP32, *merges)
    seconds = sum(kernels.seconds(product, itemsize, path == "chain") for product in products)
    seconds += sum(kernels.seconds(merge, FP32, False) for merge in merges)
    return ContractionPlan(path, cost.flops, cost.bytes_moved, 3 * seconds)


def _chain(shape: TTShape, tokens: int, order: Order | None) -> tuple[str, Order, list[Product]]:
    """Equation, order and products of contracting the input (T, modes…) with every core; the cheapest order if None."""
    cores = len(shape.core_modes)
    bonds, modes = [get_symbol(k) for k in range(cores + 1)], [get_symbol(cores + 1 + k) for k in range(cores)]
    token, d = get_symbol(2 * cores + 1), shape.left_cores
    operands = ["".join((token, *modes[:d]))] + ["".join((bonds[k], modes[k], bonds[k + 1])) for k in range(cores)]
    # The outer bonds have size 1: they belong to the output, so that no operand has an index of its own to sum over.
    equation = f"{','.join(operands)}->{''.join((bonds[0], token, *modes[d:], bonds[cores]))}"
    shapes = [(tokens, *shape.in_modes), *shape.core_shapes]
    found, info = contract_path(equation, *shapes, shapes=True, optimize=order or "dp")
    return equation, tuple(map(tuple, found)), [_product(step[2], info.size_dict) for step in info.contraction_list]


def _product(step: str, sizes: dict[str, int]) -> Product:
    """The product of a step that contracts two tensors; a step that permutes a single tensor counts as one column."""
    inputs, output = step.split("->")
    left, right = inputs.split(",") if "," in inputs else (inputs, "")
    summed = (set(left) & set(right)) - set(output)

    def size(names: set[str]) -> int:
        return prod(sizes[name] for name in names)

    return Product(size(set(left) - summed), size(summed), size(set(right) - summed))
