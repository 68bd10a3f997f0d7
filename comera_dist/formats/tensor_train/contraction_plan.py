"""Decides how a linear layer multiplies its input: through its merged sides, its dense weight, or core by core.

Shapes: T tokens, N in-features, M out-features, R middle rank; a product (m, k) x (k, n) is written (m, k, n).
Pure Python, so that a plan can be printed before any tensor exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Literal

from opt_einsum import contract_path, get_symbol

from comera_dist.formats.base import FP32
from comera_dist.formats.tensor_train.merge_order import merge_products

if TYPE_CHECKING:
    from comera_dist.formats.tensor_train.train_shapes import TTShape

Path = Literal["sides", "dense", "chain"]
Product = tuple[int, int, int]
PATHS: tuple[Path, ...] = ("sides", "dense", "chain")


@dataclass(frozen=True)
class Machine:
    """What products cost: FLOPs and bytes a second, the seconds that a kernel takes at least, and the numbers that a
    matrix unit takes at once."""

    flops: float
    bandwidth: float
    launch: float
    lanes: int

    def seconds(self, product: Product, itemsize: int, permutes: bool) -> float:
        """Seconds of one product; of a chain, where operands are brought into order first, with that.

        Bringing into order counts as three more passes over the product's numbers and two more kernels: so fitted, 20
        of 21 choices were right on layers and token counts that were measured both ways on a CPU.
        """
        work = 2 * prod(-(-size // self.lanes) * self.lanes for size in product)
        passing = _traffic(product, itemsize) / self.bandwidth
        alone = max(work / self.flops, passing, self.launch)
        return alone + (3 * passing + 2 * self.launch if permutes else 0.0)


# By device and bytes of a number. cpu: a 2048² product, a large copy and a small product on two cores of an AMD EPYC
# with AVX-512, torch 2.13. cuda: NVIDIA's H200 data sheet (dense bf16, fp32 without TF32, memory); the launch is an
# assumption. Only their ratios matter, and only where two paths are close.
CPU = Machine(2.0e11, 3.6e10, 5e-6, 16)
MACHINES = {
    ("cpu", 4): CPU,
    ("cuda", 2): Machine(9.9e14, 4.8e12, 2e-6, 16),
    ("cuda", 4): Machine(6.7e13, 4.8e12, 2e-6, 16),
}
# Core by core keeps more for backward than the merged sides do: it must be clearly cheaper.
MARGIN = 0.9


@dataclass(frozen=True)
class ContractionPlan:
    """The cheapest path of a layer, and what its forward and backward pass over all tokens cost."""

    path: Path
    flops: int
    bytes_moved: int
    seconds: float
    equation: str = ""  # of a chain: what opt_einsum contracts,
    order: tuple[tuple[int, ...], ...] = ()  # and in which order


def plan_contraction(
    shape: TTShape, tokens: int, device_type: str = "cpu", itemsize: int = FP32, among: tuple[Path, ...] = PATHS
) -> ContractionPlan:
    """The cheapest path (of those in `among`) for `tokens` tokens of a forward and backward pass, by FLOPs and bytes.

    `sides`: both sides merged, then two products; `dense`: merged to the whole weight, then one product; `chain`:
    opt_einsum's order over the input and all cores. Every product of the forward pass costs two more of its size in
    the backward pass. Token counts share a plan up to the next power of two.
    """
    return _plan(shape, 1 << max(0, tokens - 1).bit_length(), device_type, itemsize, among)


def padded_rank(rank: int, device_type: str) -> int:
    """The middle rank that a layer computes with; surplus columns are zero.

    On a CPU a product whose narrow side is just below a multiple of 16 (an AVX-512 register of fp32), or below 16, is
    slower than at that multiple: 4,096 tokens x 768 x 30 took 2.1 ms, x 32 took 1.2 ms; at four columns short and more
    it is not (measured as in `MACHINES`). On GPUs 16-bit tensor cores want rows of a multiple of 16 bytes (NVIDIA,
    Matrix Multiplication Background User's Guide).
    """
    multiple = 16 if device_type == "cpu" else 8
    surplus = -rank % multiple
    return rank + surplus if rank < multiple or surplus <= multiple // 4 or device_type != "cpu" else rank


@cache
def _plan(shape: TTShape, tokens: int, device_type: str, itemsize: int, among: tuple[Path, ...]) -> ContractionPlan:
    machine = MACHINES.get((device_type, itemsize), CPU)
    n, m, rank = shape.in_features, shape.out_features, padded_rank(shape.middle_rank, device_type)
    merges = list(_merges(shape))
    sides = _cost("sides", machine, itemsize, [(tokens, n, rank), (tokens, rank, m)], merges)
    dense = _cost("dense", machine, itemsize, [(tokens, n, m)], [*merges, (n, rank, m)])
    equation, order, products = _chain(shape, tokens)
    chain = replace(_cost("chain", machine, itemsize, products, []), equation=equation, order=order)
    price = {"sides": sides.seconds, "dense": dense.seconds, "chain": chain.seconds / MARGIN}
    return min((plan for plan in (sides, dense, chain) if plan.path in among), key=lambda plan: price[plan.path])


def _cost(path: Path, machine: Machine, itemsize: int, products: list[Product], merges: list[Product]):
    """Three products for each of the forward pass: one forward, two backward."""
    flops = sum(2 * prod(product) for product in (*products, *merges))
    moved = sum(_traffic(product, itemsize) for product in products) + sum(_traffic(merge, FP32) for merge in merges)
    # Cores are merged in fp32 whatever the compute precision.
    seconds = sum(machine.seconds(product, itemsize, path == "chain") for product in products)
    seconds += sum(machine.seconds(merge, FP32, False) for merge in merges)
    return ContractionPlan(path, 3 * flops, 3 * moved, 3 * seconds)


def _traffic(product: Product, itemsize: int) -> int:
    """Bytes of both factors and the result, each moved once."""
    m, k, n = product
    return (m * k + k * n + m * n) * itemsize


def _merges(shape: TTShape) -> Iterator[Product]:
    middle = len(shape.in_modes)
    yield from merge_products(shape.ranks[: middle + 1], shape.in_modes)
    yield from merge_products(shape.ranks[middle:], shape.out_modes)


def _chain(shape: TTShape, tokens: int) -> tuple[str, tuple[tuple[int, ...], ...], list[Product]]:
    """Equation, order and products of contracting the input (T, modes…) with every core."""
    cores = len(shape.core_modes)
    bonds, modes = [get_symbol(k) for k in range(cores + 1)], [get_symbol(cores + 1 + k) for k in range(cores)]
    token, d = get_symbol(2 * cores + 1), len(shape.in_modes)
    operands = ["".join((token, *modes[:d]))] + ["".join((bonds[k], modes[k], bonds[k + 1])) for k in range(cores)]
    # The outer bonds have size 1: they belong to the output, so that no operand has an index of its own to sum over.
    equation = f"{','.join(operands)}->{''.join((bonds[0], token, *modes[d:], bonds[cores]))}"
    shapes = [(tokens, *shape.in_modes), *shape.core_shapes]
    order, info = contract_path(equation, *shapes, shapes=True, optimize="dp")
    return equation, tuple(map(tuple, order)), [_product(step[2], info.size_dict) for step in info.contraction_list]


def _product(step: str, sizes: dict[str, int]) -> Product:
    """(m, k, n) of one contraction of two tensors, or of none where it only permutes one."""
    inputs, output = step.split("->")
    left, right = inputs.split(",") if "," in inputs else (inputs, "")
    summed = (set(left) & set(right)) - set(output)

    def size(names: set[str]) -> int:
        return prod(sizes[name] for name in names)

    return size(set(left) - summed), size(summed), size(set(right) - summed)
