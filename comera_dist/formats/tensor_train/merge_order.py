"""In which order a chain of cores is merged into one tensor, and the matrix products that this takes.

Shapes: a chain of c cores has `modes` of length c and `bonds` of length c + 1 (its two outer bonds included);
core k is (bonds[k], modes[k], bonds[k + 1]).
"""

from functools import cache

from opt_einsum import contract_path, get_symbol

from comera_dist.formats.base import Product


@cache
def merge_order(bonds: tuple[int, ...], modes: tuple[int, ...]) -> tuple[int, ...]:
    """The cheapest order: position k means "merge the k-th remaining tensor with its right neighbour".

    Found by opt_einsum's dynamic programming, once per shape and never in a training step.
    """
    names = [get_symbol(k) for k in range(2 * len(modes) + 1)]  # bond, mode, bond, …, bond
    operands = ["".join(names[2 * k : 2 * k + 3]) for k in range(len(modes))]
    equation = f"{','.join(operands)}->{names[0]}{''.join(names[1::2])}{names[-1]}"
    shapes = [(bonds[k], mode, bonds[k + 1]) for k, mode in enumerate(modes)]
    path, _ = contract_path(equation, *shapes, shapes=True, optimize="dp")
    return _as_neighbour_merges(path, len(modes))


def _as_neighbour_merges(path: list[tuple[int, ...]], cores: int) -> tuple[int, ...]:
    """opt_einsum appends each result at the end of its operand list; a chain keeps its order."""
    starts = list(range(cores))  # the first core of each operand
    merges = []
    for pair in path:
        if len(pair) < 2:
            continue  # a chain of one core: nothing to merge
        first = min(starts[i] for i in pair)
        merges.append(sorted(starts).index(first))
        starts = [start for i, start in enumerate(starts) if i not in pair] + [first]
    return tuple(merges)


def merge_products(bonds: tuple[int, ...], modes: tuple[int, ...]) -> list[Product]:
    """The products of merging the chain once, in order."""
    bonds_left, modes_left, products = list(bonds), list(modes), []
    for k in merge_order(bonds, modes):
        left, inner, right = bonds_left[k : k + 3]
        products.append(Product(left * modes_left[k], inner, modes_left[k + 1] * right))
        modes_left[k : k + 2] = [modes_left[k] * modes_left[k + 1]]
        del bonds_left[k + 1]
    return products


def merge_flops(bonds: tuple[int, ...], modes: tuple[int, ...]) -> int:
    """FLOPs (multiply-adds x 2) of merging the chain once."""
    return sum(product.flops for product in merge_products(bonds, modes))
