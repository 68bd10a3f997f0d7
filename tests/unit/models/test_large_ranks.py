"""Ranks that all matrices clip are found, whatever formats read them, and others are not."""

import pytest
from support import FACTS, TINY

from comera_dist.config.reader import read_config
from comera_dist.models.family import plan_model
from comera_dist.models.large_ranks import large_ranks

# Without the keys of `tensor` that TINY sets. Matrices of blocks are 16 or 24 wide, the table is 64 x 16.
MODEL = [override for override in TINY if not override.startswith("tensor.")]
LOW, BLOCKS = "model.format={rest: low_rank, embedding: dense}", "model.format={rest: block_train, embedding: dense}"
MORE = "is more than any matrix can have: the model is the same with"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], []),  # a default asks for nothing
        (["tensor.rank=16"], []),
        (["tensor.rank=4096"], [f"tensor.rank = 4096 {MORE} 16."]),
        (["tensor.rank=17", "tensor.outer_rank=4"], [f"tensor.rank = 17 {MORE} 8."]),  # a mode of 2 times 4
        (["model.format=dense", "tensor.rank=4096"], []),  # an idle key
        ([LOW, "tensor.low_rank.rank=40", "tensor.rank=50"], [f"tensor.low_rank.rank = 40 {MORE} 16."]),
        ([LOW, "tensor.low_rank.rank=1"], []),
        ([BLOCKS, "tensor.block_train.rank=64"], [f"tensor.block_train.rank = 64 {MORE} 4."]),
        (["tensor.layers=[{match: '*.o_proj', rank: 9}]"], []),
        (
            ["tensor.layers=[{match: '*.v_proj', rank: 9}, {match: '*.o_proj', rank: 20}]"],
            [f"rank of the rule of tensor.layers for '*.o_proj' = 20 {MORE} 16."],
        ),
        (
            [LOW, "tensor.layers=[{match: '*.o_proj', options: {rank: 20}}]"],
            [f"rank of the rule of tensor.layers for '*.o_proj' = 20 {MORE} 16."],
        ),
        # Projections of keys and values are 8 wide, and clip it.
        (["model.kv_heads=1", "tensor.rank=16"], []),
        (["model.format=low_rank", "tensor.low_rank.rank=15"], []),
    ],
)
def test_ranks_that_every_matrix_clips(overrides, said):
    assert large_ranks(read_config(None, [*MODEL, *overrides]), FACTS) == said


def test_the_named_rank_is_the_smallest_that_gives_the_same_model():
    def planned(rank):
        return plan_model(read_config(None, [*MODEL, f"tensor.embedding_rank={rank}"]), FACTS)

    (line,) = large_ranks(read_config(None, [*MODEL, "tensor.embedding_rank=500"]), FACTS)
    used = int(line.rpartition(" ")[2].rstrip("."))
    assert planned(used) == planned(500) != planned(used - 1)
