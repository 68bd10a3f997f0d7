"""The format `auto` against every block train and every low-rank matrix of the size."""

import pytest
import torch

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.auto import AUTO, BLOCKS_OVER_FACTORS, AutoOptions, worth
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.block_train import BlockTrainPlan, plan_blocks
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import plan_linear
from comera_dist.formats.tensor_train.shapes import plan_tt

SHARES = (0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
TINY = ["data.corpus=none", "train.steps=5"]


def full_rank(plan: MatrixPlan) -> bool:
    """Whether a random weight of the plan has full rank."""
    layer = plan.build(1.0, torch.Generator().manual_seed(0)).double()
    return int(torch.linalg.matrix_rank(layer.to_dense())) == min(plan.inputs, plan.outputs)


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (16, 24), (36, 16), (7, 5), (32, 8)])
@pytest.mark.parametrize("share", SHARES)
def test_no_other_plan_within_the_share_is_worth_more(inputs, outputs, share):
    chosen, dense = AUTO.plan_linear(inputs, outputs, AutoOptions(share=share)), inputs * outputs
    counts = [None, *(2**power for power in range(1, 8) if 2**power <= min(inputs, outputs))]
    blocks = {plan_blocks(inputs, outputs, rank, count) for count in counts for rank in range(1, 20)}
    others = [plan_tt(inputs, outputs, 1, rank) for rank in range(1, min(inputs, outputs) + 1)]
    others += [plan for plan in blocks if plan.num_parameters <= share * dense and full_rank(plan)]
    within = [worth(plan) for plan in others if plan.num_parameters <= share * dense]
    if within:
        assert chosen.num_parameters <= share * dense
        assert worth(chosen) == max(within)
    elif isinstance(chosen, DensePlan):
        assert plan_tt(inputs, outputs, 1, 1).num_parameters >= dense
    else:
        assert chosen == plan_tt(inputs, outputs, 1, 1)  # the smallest that there is


def test_a_block_train_counts_more_than_factors_of_its_size():
    blocks, factors = plan_blocks(16, 16, 2), plan_tt(16, 16, 1, 8)
    assert blocks.num_parameters > factors.num_parameters / BLOCKS_OVER_FACTORS
    assert worth(blocks) == BLOCKS_OVER_FACTORS * blocks.num_parameters
    assert worth(factors) == factors.num_parameters


def test_chosen_block_trains_have_full_rank():
    found = [AUTO.plan_linear(24, 40, AutoOptions(share=share / 50)) for share in range(1, 50)]
    blocks = {plan for plan in found if isinstance(plan, BlockTrainPlan)}
    assert len(blocks) > 2
    assert all(map(full_rank, blocks))


@pytest.mark.parametrize("size", [(30, 12), (12, 30), (2, 2), (1, 1)])
@pytest.mark.parametrize("share", [*SHARES, 1.0])
def test_a_table_is_low_rank_or_dense(size, share):
    plan = AUTO.plan_table(*size, AutoOptions(share=share))
    rows, width = size
    rank = max(1, int(share * rows * width) // (rows + width))
    if share == 1 or rank * (rows + width) >= rows * width:
        assert plan == DensePlan(rows, width, is_embedding=True)
    else:
        assert plan.table_rank == rank
        assert plan.is_embedding


def test_a_share_of_one_is_dense_and_a_rule_may_set_its_own():
    config = read_config(
        None,
        [
            *TINY,
            "model.format=auto",
            "tensor.auto.share=1",
            "tensor.layers=[{match: '*q_proj', options: {share: 0.1}}]",
        ],
    )
    assert isinstance(plan_linear(config, "k_proj", "auto", 16, 16), DensePlan)
    assert plan_linear(config, "q_proj", "auto", 16, 16).num_parameters <= 32
    for share in ("0", "1.1"):
        with pytest.raises(ConfigError, match=r"tensor\.auto\.share"):
            read_config(None, [*TINY, "model.format=auto", f"tensor.auto.share={share}"])
