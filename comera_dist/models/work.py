"""Work of a forward pass that belongs to no planned matrix."""

from dataclasses import dataclass

from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.dense import DensePlan


@dataclass(frozen=True)
class Work:
    """Forward work of `count` equal pieces, each of so many FLOPs and numbers (read or written).

    `per_token` is multiplied by the tokens (rows) of a forward pass, `once` is paid however many they are.
    """

    name: str
    path: str  # how it is computed, in words
    flops_per_token: float
    numbers_per_token: float = 0.0
    flops_once: int = 0
    numbers_once: int = 0
    count: int = 1


def attention(layers: int, width: int, seen: float) -> Work:
    """Of all blocks; a token sees `seen` others on average.

    Scores and the weighted sum of values are 2·width multiply-adds for each of them. Queries, keys, values and the
    result are read or written, scores are not.
    """
    return Work("attention", "scaled dot product", 4 * seen * width, 4 * width, count=layers)


def tied_head(table: MatrixPlan, share: float = 1.0) -> Work:
    """The product with an embedding's table V × D as output of that share of all tokens; its cores are merged once."""
    return Work(
        "tied head",
        "weight" if isinstance(table, DensePlan) else "merged table",
        flops_per_token=2 * table.dense_parameters * share,
        numbers_per_token=(table.inputs + table.outputs) * share,
        flops_once=table.merge_flops,
        numbers_once=table.dense_parameters,
    )
