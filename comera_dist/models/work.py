"""Work of a forward pass outside of planned matrices."""

from dataclasses import dataclass

from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.dense import DensePlan


@dataclass(frozen=True)
class Work:
    """FLOPs, and numbers read or written, of each of `count` equal pieces of forward work.

    Fields `…_per_token` are per token (row) of a forward pass, fields `…_once` per forward pass.
    """

    name: str
    path: str  # how it is computed, in words
    flops_per_token: float
    numbers_per_token: float = 0.0
    flops_once: int = 0
    numbers_once: int = 0
    count: int = 1
    dense_flops_per_token: float | None = None  # of the dense model, where they are others


def attention(layers: int, width: int, seen: float) -> Work:
    """Attention of all blocks, where a token sees `seen` tokens on average.

    Scores and the weighted sum of values take 2·width multiply-adds per seen token. Queries, keys, values and the
    result are read or written; scores are not.
    """
    return Work("attention", "scaled dot product", 4 * seen * width, 4 * width, count=layers)


def head_gates(layers: int, width: int, heads: int) -> Work:
    """The products from which each token computes a gate for each head, in all blocks."""
    size = width * heads
    return Work("gates of heads", "weight", 2 * size, width + heads, numbers_once=size, count=layers)


def tied_head(table: MatrixPlan, share: float = 1.0) -> Work:
    """The product of a share of all tokens with an embedding's table V × D, as `formats.capabilities.logits_factors`.

    A table is merged from its cores once, unless it multiplies by two factors.
    """
    if table.table_rank is not None:
        return Work(
            "tied head",
            "two factors",
            flops_per_token=2 * table.num_parameters * share,
            numbers_per_token=(table.inputs + 2 * table.table_rank + table.outputs) * share,
            numbers_once=table.num_parameters,
            dense_flops_per_token=2 * table.dense_parameters * share,
        )
    return Work(
        "tied head",
        "weight" if isinstance(table, DensePlan) else "merged table",
        flops_per_token=2 * table.dense_parameters * share,
        numbers_per_token=(table.inputs + table.outputs) * share,
        flops_once=table.merge_flops,
        numbers_once=table.dense_parameters,
    )
