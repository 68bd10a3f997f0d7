"""The formats whose weights are tensor trains: `tensor`, and `low_rank`, a train of one core a side.

Tables are stored as tensor-train matrices. The keys of `tensor` stand in the section `tensor` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from comera_dist.config.fields import Modes, Order, Positive, Section
from comera_dist.formats.base import Format, Tables, given_rank
from comera_dist.formats.tensor_train.shapes import plan_tt, plan_ttm
from comera_dist.formats.tensor_train.train_shapes import TTMShape, TTShape

if TYPE_CHECKING:
    from comera_dist.config.tensor_section import Tensor


class TrainOptions(Section):
    """Arguments of plan_tt."""

    order: Order
    """Cores per side."""
    rank: Positive
    """Middle rank."""
    outer_rank: Positive | None = None
    """Largest rank of all other bonds; null allows as much as `rank`."""
    in_modes: Modes | None = None
    """Factors of the in-features, one for each core; they may be larger than needed, because the rest is sliced off."""
    out_modes: Modes | None = None
    """Factors of the out-features, one for each core; they may be larger than needed, because the rest is sliced
    off."""


class TableOptions(Section):
    """Arguments of plan_ttm."""

    order: Order
    """Cores of the tensor-train matrix."""
    rank: Positive
    """Largest rank of all bonds."""
    vocab_modes: Modes | None = None
    """Factors of the number of rows, one for each core; their product may be larger than the number."""
    width_modes: Modes | None = None
    """Factors of the width, one for each core."""


class TensorTrainFormat(Format, Tables):
    """Linear layers as tensor trains, tables as tensor-train matrices."""

    name = "tensor"
    options, table_options = TrainOptions, TableOptions
    linear_plan, table_plan = TTShape, TTMShape

    def options_in(self, section: Tensor) -> TrainOptions:
        return TrainOptions(order=section.order, rank=section.rank, outer_rank=section.outer_rank)

    def rank_keys(self, section: Tensor, is_table: bool) -> list[str]:
        keys = ("embedding_rank",) if is_table else ("rank", "outer_rank")
        return [f"tensor.{key}" for key in keys if (getattr(section, key) or section.rank) != 1]

    def plan_linear(self, inputs: int, outputs: int, options: TrainOptions) -> TTShape:
        return plan_tt(inputs, outputs, **dict(options))

    def table_options_in(self, section: Tensor) -> TableOptions:
        return TableOptions(order=section.embedding_order, rank=section.embedding_rank)

    def plan_table(self, rows: int, width: int, options: TableOptions) -> TTMShape:
        return plan_ttm(rows, width, **dict(options))


class LowRankOptions(Section):
    """Keys of `tensor.low_rank`."""

    rank: Positive | None = None
    """Rank of the two factors; null takes `tensor.rank`, and `tensor.embedding_rank` for a table."""


class LowRankFormat(Format, Tables):
    """Two plain factors, (N, r) and (r, M) of a linear layer, (V, r) and (r, D) of a table."""

    name = "low_rank"
    options = table_options = LowRankOptions
    linear_plan, table_plan = TTShape, TTMShape

    def options_in(self, section: Tensor) -> LowRankOptions:
        return LowRankOptions(rank=section.options_of(self.name).rank or section.rank)

    def plan_linear(self, inputs: int, outputs: int, options: LowRankOptions) -> TTShape:
        return plan_tt(inputs, outputs, order=1, rank=given_rank(self.name, options.rank))

    def table_options_in(self, section: Tensor) -> LowRankOptions:
        return LowRankOptions(rank=section.options_of(self.name).rank or section.embedding_rank)

    def plan_table(self, rows: int, width: int, options: LowRankOptions) -> TTMShape:
        rank = given_rank(self.name, options.rank)
        return plan_ttm(rows, width, order=2, rank=rank, vocab_modes=(rows, 1), width_modes=(1, width))


TENSOR, LOW_RANK = TensorTrainFormat(), LowRankFormat()
