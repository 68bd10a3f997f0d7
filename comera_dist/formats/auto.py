"""The format `auto`: of the forms that fit a share of the dense matrix's numbers, the one that should lose least.

A linear layer becomes a block tensor train of full rank, or plain low rank where that fits so much better that it
makes good for its higher loss. A table becomes low rank. The FLOPs of a token are the same share of the dense ones, if
a layer multiplies by its blocks. All matrices have one share, because no measurement here says where more numbers are
worth more. `costs/budget.py` finds the share that keeps a whole model within a budget.
"""

from functools import cache

from comera_dist.config.fields import Section, Share
from comera_dist.config.tensor_section import Tensor
from comera_dist.formats.base import Format, MatrixPlan, Tables
from comera_dist.formats.block_train import BlockTrainPlan, plan_blocks
from comera_dist.formats.dense import DENSE, NoOptions
from comera_dist.formats.tensor_train.format import LOW_RANK, LowRankOptions
from comera_dist.formats.tensor_train.train_shapes import TTMShape

# A low-rank matrix of the same loss has so many times the numbers of a block train. In trials at d=64 (docs/quality.md)
# low rank loses 0.095 nats to block trains with 5 % more numbers, and dense models lose 0.18 nats for each factor of e.
BLOCKS_OVER_FACTORS = 1.6


class AutoOptions(Section):
    """Keys of `tensor.auto`."""

    share: Share = 0.5
    """Part of a dense matrix's numbers that a matrix may store, with 1 for dense; `tensor.budget` takes its place."""


class AutoFormat(Format, Tables):
    """Chooses the format of each matrix. One that no format makes smaller stays dense."""

    name = "auto"
    options = table_options = AutoOptions
    linear_plan, table_plan = BlockTrainPlan, TTMShape

    def plan_linear(self, inputs: int, outputs: int, options: AutoOptions) -> MatrixPlan:
        dense, allowed = DENSE.plan_linear(inputs, outputs, NoOptions()), int(options.share * inputs * outputs)
        if options.share == 1:
            return dense
        factors = LOW_RANK.plan_linear(inputs, outputs, _factors(inputs, outputs, allowed))
        return smaller(max([factors, *full_rank_blocks(inputs, outputs, allowed)], key=worth), dense)

    def table_options_in(self, section: Tensor) -> Section:
        return self.options_in(section)

    def plan_table(self, rows: int, width: int, options: AutoOptions) -> MatrixPlan:
        dense, allowed = DENSE.plan_table(rows, width, NoOptions()), int(options.share * rows * width)
        if options.share == 1:
            return dense
        return smaller(LOW_RANK.plan_table(rows, width, _factors(rows, width, allowed)), dense)


AUTO = AutoFormat()


@cache
def full_rank_blocks(inputs: int, outputs: int, allowed: int) -> tuple[BlockTrainPlan, ...]:
    """The largest block trains of at most `allowed` numbers whose weight can have full rank, one for each block count.

    The block counts are the default one and 2, 4, 8, … A product through n·m bonds of r indices has full rank if
    there are as many indices as the shorter side has features.
    """
    shorter, found = min(inputs, outputs), []
    for blocks in (None, *(2**power for power in range(1, shorter.bit_length()))):
        smallest = plan_blocks(inputs, outputs, 1, blocks)
        rank, bonds = allowed // smallest.num_parameters, smallest.in_blocks[0] * smallest.out_blocks[0]
        if rank * bonds >= shorter:
            found.append(plan_blocks(inputs, outputs, rank, blocks))
    return tuple(found)


def worth(plan: MatrixPlan) -> float:
    """Numbers of a low-rank matrix of the same loss."""
    return plan.num_parameters * (BLOCKS_OVER_FACTORS if isinstance(plan, BlockTrainPlan) else 1)


def smaller(plan: MatrixPlan, dense: MatrixPlan) -> MatrixPlan:
    """The plan, or the dense one if that is not larger."""
    return plan if plan.num_parameters < dense.num_parameters else dense


def _factors(inputs: int, outputs: int, allowed: int) -> LowRankOptions:
    """The largest rank whose two factors have `allowed` numbers, at least 1."""
    return LowRankOptions(rank=max(1, allowed // (inputs + outputs)))
