"""Tables whose frequent rows are wider than rare ones: for vocabularies that are sorted by falling frequency.

Shapes: V rows, D width. Block j holds V_j consecutive rows as A_j (V_j, K_j) times B_j (K_j, D), K = Σ K_j. A linear
layer of N = D inputs and M = V outputs is such a table transposed.

Ginart et al. 2021, "Mixed Dimension Embeddings with Application to Memory-Efficient Recommendation Systems" (arXiv
1909.11810); Baevski and Auli 2019, "Adaptive Input Representations for Neural Language Modeling" (arXiv 1809.10853).
The softmax is the usual one over all tokens, not a tree of clusters.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.config.fields import Positive, Section
from comera_dist.config.tensor_section import Tensor as TensorSection
from comera_dist.errors import ConfigError
from comera_dist.formats.base import FP32, Format, FromDense, Sizes, StepCost, Tables, given_rank
from comera_dist.formats.dense import gathered_bytes
from comera_dist.formats.dense_layers import Then
from comera_dist.formats.gated_layer import PlannedLayer
from comera_dist.ops.autocast import compute_dtype, without_autocast
from comera_dist.ops.block_logits import block_logits
from comera_dist.ops.products import linear

# Each block has twice as many rows as the one before it, of half the width. Of sizes that grow 2, 3, 4 or 6 times and
# widths that fall 1.5, 2 or 3 times, in 2, 3, 4 or 6 blocks, this lost least when a trained table of 4,096 tokens was
# cut to 0.36 and 0.14 of its size (three blocks).
GROWTH, SHRINKAGE = 2, 2


class MixedDimensionOptions(Section):
    """Keys of `tensor.mixed_dimension`."""

    rank: Positive | None = None
    """Width in which the first, most frequent rows are stored; null takes `tensor.embedding_rank`."""
    blocks: Positive = 3
    """Blocks of rows, each with twice as many rows as the one before it, of half the width."""


@dataclass(frozen=True)
class MixedDimensionPlan(FromDense):
    """A table V x D, or a linear layer N → M. `rows` and `ranks` are V_j and K_j."""

    inputs: int
    outputs: int
    rows: tuple[int, ...]
    ranks: tuple[int, ...]
    is_embedding: bool = False
    tag = "mixed_dimension"
    projection = "projection"

    def __post_init__(self) -> None:
        if (
            len(self.rows) != len(self.ranks)
            or min(*self.rows, *self.ranks) < 1
            or sum(self.rows) != self.dense_size[0]
        ):
            raise ConfigError(
                f"blocks of {self.rows} rows and ranks {self.ranks} do not fit {self.dense_size[0]} rows; take those "
                f"that plan_mixed chooses"
            )

    @property
    def table_rank(self) -> int:  # type: ignore[override]  # a property instead of an attribute
        return sum(self.ranks)

    @property
    def tensors(self) -> dict[str, Sizes]:
        sizes: dict[str, Sizes] = {"projection": (self.table_rank, self.dense_size[1])}
        blocks = enumerate(zip(self.rows, self.ranks, strict=True), start=1)
        return {f"rows_{j}": size for j, size in blocks} | sizes

    @property
    def flops_per_token(self) -> int:
        """A lookup multiplies one row of K numbers, which are zero outside of its block, by the projection."""
        return 2 * (self.table_rank * self.outputs if self.is_embedding else self.num_parameters)

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        rows, width = self.dense_size
        if self.is_embedding:
            moved = 3 * FP32 * tokens * (2 * self.table_rank + width) + gathered_bytes(tokens, self.table_rank)
            return StepCost("lookup", 3 * tokens * self.flops_per_token, moved)
        moved = 3 * itemsize * (tokens * (width + 2 * self.table_rank + rows) + self.num_parameters)
        return StepCost("blocks", 3 * tokens * self.flops_per_token, moved)

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        layer = self._blank(bias)
        if generator is not None:
            for rows in layer.rows:
                nn.init.normal_(rows, std=std, generator=generator)
            for block in torch.split(layer.projection.data, list(self.ranks)):
                # Keeps the mean square of the rows, for an input of a linear layer and for a row of a table alike.
                block.normal_(std=len(block) ** -0.5, generator=generator)
        return layer

    def from_dense(self, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
        """The closest table of this plan: the truncated SVD of each block (Eckart and Young 1936)."""
        table = self.table_of(weight).double()
        blocks = torch.split(table if self.is_embedding else table.T, list(self.rows))
        layer = self._blank(bias is not None)
        with torch.no_grad():
            projections = torch.split(layer.projection, list(self.ranks))
            for block, rows, projection in zip(blocks, layer.rows, projections, strict=True):
                U, S, Vh = torch.linalg.svd(block, full_matrices=False)
                rank = min(len(S), rows.shape[1])
                rows.zero_()[:, :rank] = U[:, :rank] * S[:rank]
                projection.zero_()[:rank] = Vh[:rank]
            if bias is not None and layer.bias is not None:
                layer.bias.copy_(bias)
        return layer.to(weight.device)

    @property
    def description(self) -> str:
        return " ".join(f"{rows}×{rank}" for rows, rank in zip(self.rows, self.ranks, strict=True))

    def _blank(self, bias: bool) -> "MixedDimension":
        return MixedDimensionTable(self) if self.is_embedding else MixedDimensionLinear(self, bias)


class MixedDimension(PlannedLayer[MixedDimensionPlan]):
    """Parameters rows_j (V_j, K_j) and projection (K, D), which holds the B_j one below the other."""

    projection: nn.Parameter

    @property
    def rows(self) -> list[nn.Parameter]:
        return [getattr(self, f"rows_{j}") for j in range(1, len(self.plan.rows) + 1)]

    def table_factors(self) -> tuple[list[nn.Parameter], Tensor]:
        """The diagonal blocks A_j of a matrix (V, K), and B (K, D)."""
        return self.rows, self.projection

    def to_dense(self) -> Tensor:
        """The table (V, D), which is also the weight (M, N) of the linear layer; differentiable."""
        projections = torch.split(self.projection, list(self.plan.ranks))
        with without_autocast(self.projection):
            return torch.cat([rows @ block for rows, block in zip(self.rows, projections, strict=True)])


class MixedDimensionTable(MixedDimension):
    """Rows (…, D) of ids (…), in the dtype of the parameters. On a CPU IndexError for an id outside the table."""

    def forward(self, ids: Tensor) -> Tensor:
        starts, found = accumulate(self.plan.rows, initial=0), []
        for (start, stop), rows in zip(pairwise(starts), self.rows, strict=True):
            # All ids are looked up in every block: a size that depends on values cannot be compiled or captured. Those
            # outside the table are taken for ids of the first or of the last block, which do not have them.
            inside = torch.ones_like(ids, dtype=torch.bool)
            if start > 0:
                inside &= ids >= start
            if stop < sum(self.plan.rows):
                inside &= ids < stop
            found.append(F.embedding((ids - start).where(inside, 0), rows) * inside[..., None])
        with without_autocast(self.projection):  # as nn.Embedding, whose rows are those of its weight
            return torch.cat(found, -1) @ self.projection


class MixedDimensionLinear(MixedDimension):
    """y (…, M) of x (…, N), in the dtype of x or of autocast."""

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        """y, or then(x Bᵀ, [A_1, …]), so that a loss need not hold all of y."""
        dtype = compute_dtype(x)
        narrow = linear(x.to(dtype), self.projection.to(dtype))
        if then is not None:
            return then(narrow, self.rows)
        y = block_logits(narrow, [rows.to(dtype) for rows in self.rows])
        return y if self.bias is None else y + self.bias.to(y.dtype)


class MixedDimensionFormat(Format, Tables):
    """Stores vocabularies with wide frequent rows and narrow rare ones; ids must be sorted by falling frequency."""

    name = "mixed_dimension"
    options = table_options = MixedDimensionOptions
    linear_plan = table_plan = MixedDimensionPlan

    def options_in(self, section: TensorSection) -> MixedDimensionOptions:
        own = section.options_of(self.name)
        return MixedDimensionOptions(rank=own.rank or section.embedding_rank, blocks=own.blocks)

    def plan_linear(self, inputs: int, outputs: int, options: MixedDimensionOptions) -> MixedDimensionPlan:
        rows, ranks = plan_mixed(outputs, inputs, given_rank(self.name, options.rank), options.blocks)
        return MixedDimensionPlan(inputs, outputs, rows, ranks)

    def table_options_in(self, section: TensorSection) -> Section:
        return self.options_in(section)

    def plan_table(self, rows: int, width: int, options: MixedDimensionOptions) -> MixedDimensionPlan:
        sizes, ranks = plan_mixed(rows, width, given_rank(self.name, options.rank), options.blocks)
        return MixedDimensionPlan(rows, width, sizes, ranks, is_embedding=True)


MIXED_DIMENSION = MixedDimensionFormat()


def plan_mixed(rows: int, width: int, rank: int, blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """V_j and K_j of `blocks` blocks; of fewer, if there are fewer rows than blocks. Ranks are clipped to the width."""
    total = sum(GROWTH**j for j in range(blocks))
    stops = sorted({ceil(rows * sum(GROWTH**i for i in range(j + 1)) / total) for j in range(blocks)})
    sizes = tuple(stop - start for start, stop in pairwise([0, *stops]))
    return sizes, tuple(max(1, min(width, round(rank / SHRINKAGE**j))) for j in range(len(sizes)))
