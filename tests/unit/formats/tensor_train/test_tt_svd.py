from math import prod

import pytest
import torch

from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.contraction import merge_chain
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, clip_ranks, plan_tt, plan_ttm
from comera_dist.formats.tensor_train.tt_svd import tt_svd


def _full_linear(n, m, in_modes, out_modes):
    modes = (*in_modes, *out_modes)
    return TTShape(n, m, in_modes, out_modes, clip_ranks(modes, [10**6] * (len(modes) - 1)))


def _whole(cores, modes):
    return merge_chain([core.unsqueeze(2) for core in cores]).reshape(modes)


@pytest.mark.parametrize("modes", [(6, 5), (4, 5, 6), (3, 4, 5, 2), (2, 3, 2, 3, 2, 3)])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_error_is_below_that_of_the_best_matrices_together(modes, rank, generator):
    tensor = torch.randn(modes, generator=generator)
    cores = tt_svd(tensor, (1, *[rank] * (len(modes) - 1), 1))
    error = float((_whole(cores, modes) - tensor.double()).norm())
    unfoldings = [tensor.double().reshape(prod(modes[:k]), -1) for k in range(1, len(modes))]
    dropped = [torch.linalg.svdvals(unfolding)[rank:] for unfolding in unfoldings]
    assert 0 < error <= float(torch.cat(dropped).norm()) * (1 + 1e-9)


@pytest.mark.parametrize(
    "shape", [_full_linear(24, 30, (4, 6), (6, 5)), _full_linear(23, 29, (4, 3, 2), (5, 2, 3)), plan_tt(24, 30, 1, 24)]
)
def test_full_rank_linear_is_exact(shape, generator, assert_close):
    weight = torch.randn(shape.outputs, shape.inputs, generator=generator)
    layer = shape.from_dense(weight)
    assert layer.plan == shape
    assert_close(layer.to_dense(), weight)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_full_rank_embedding_is_exact(order, generator, assert_close):
    vocab, width = {1: ((29,), (12,)), 2: ((6, 5), (3, 4)), 3: ((5, 2, 3), (2, 2, 3))}[order]
    sizes = [v * e for v, e in zip(vocab, width, strict=True)]
    shape = TTMShape(29, 12, vocab, width, clip_ranks(sizes, [10**6] * (order - 1)))
    table = torch.randn(29, 12, generator=generator)
    assert_close(shape.from_dense(table).to_dense(), table)


def test_a_train_is_recovered_at_its_own_ranks(generator, assert_close):
    layer = TTLinear(plan_tt(96, 128, 3, 10, 6), generator=generator)
    again = layer.plan.from_dense(layer.to_dense(), torch.arange(128.0))
    assert_close(again.to_dense(), layer.to_dense())
    assert_close(again.bias, torch.arange(128.0))
    embedding = TTMEmbedding(plan_ttm(210, 24, 3, 5), generator=generator)
    assert_close(embedding.plan.from_dense(embedding.to_dense()).to_dense(), embedding.to_dense())


def test_a_weight_of_zeros_and_a_weight_of_another_size():
    shape = plan_tt(24, 30, 2, 4)
    assert not shape.from_dense(torch.zeros(30, 24)).to_dense().any()
    with pytest.raises(ConfigError, match=r"\(24, 30\).*\(30, 24\)"):
        shape.from_dense(torch.zeros(24, 30))
