"""The FLOPs that methods declare of a step, against counted products."""

import pytest
import torch
from each_matrix import Alone, gradients
from torch.utils.flop_counter import FlopCounterMode

M, N, R, K = 96, 64, 4, 6  # K columns of a sketch

# Settings of a method; and the FLOPs that it declares of QR decompositions, and of refreshes that it need not make.
METHODS = {
    "dion": (["optim.dion.rank_fraction=0.0625"], 4 * M * R**2),
    "soap": ([], (2 + 4) * (M**3 + N**3) // 10),
    "mlorc": (["optim.mlorc.rank=4", "optim.mlorc.oversampling=2"], 2 * 4 * M * K**2),
    "mofasgd": (["optim.mofasgd.rank=4"], 4 * (M + N) * (2 * R) ** 2),
}


@pytest.mark.parametrize("kind", METHODS)
def test_flops_of_products_are_counted_ones(kind):
    """Of the second step. The counter knows products alone; those of R x R matrices are not declared."""
    settings, not_counted = METHODS[kind]
    alone, (first, second) = Alone(kind, (M, N), *settings), gradients((M, N), 2)
    alone.make([first], lr=0.01)
    in_place = {torch.ops.aten.addmm_: lambda _, left, right, **others: 2 * left[0] * left[1] * right[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        alone.make([second], lr=0.01)
    declared = alone.method.product_flops(1, M, N) - not_counted
    assert counter.get_total_flops() == pytest.approx(declared, rel=0.02)
