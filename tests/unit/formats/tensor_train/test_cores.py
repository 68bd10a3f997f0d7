from math import prod, sqrt

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.formats.tensor_train.contraction import merge_chain
from comera_dist.formats.tensor_train.cores import random_tt_cores, random_ttm_cores
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTShape, plan_tt, plan_ttm

SHIPPED = [
    *[(64, 64), (64, 176), (176, 64), (256, 256), (256, 704), (704, 256), (512, 512), (512, 1376), (768, 768)],
    *[(768, 2048), (2048, 768), (768, 3072), (3072, 768), (256, 4096), (97, 211)],
]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(("n", "m"), SHIPPED)
def test_outputs_vary_as_those_of_a_dense_layer(n, m, order, generator):
    for rank in sorted({8, max(8, min(n, m) // 4)}):
        layer = TTLinear(plan_tt(n, m, order, rank), generator=generator)
        x = torch.randn(256, n, generator=generator)
        with torch.no_grad():
            assert 0.8 < float(layer(x).std()) < 1.2


@pytest.mark.parametrize("shape", [plan_tt(768, 2048, 3, 48, 16), plan_tt(97, 211, 4, 12), plan_tt(97, 211, 1, 12)])
def test_weight_has_the_norm_of_a_dense_one(shape, generator):
    layer = TTLinear(shape, std=0.05, generator=generator, dtype=torch.float64)
    norm = float(layer.to_dense().norm())
    assert norm == pytest.approx(0.05 * sqrt(shape.inputs * shape.outputs), rel=1e-9)


def test_both_sides_of_an_unpadded_layer_are_isometries(generator, assert_close):
    layer = TTLinear(plan_tt(256, 704, 3, 32), generator=generator, dtype=torch.float64)
    U, V = layer.factors()
    eye = torch.eye(32, dtype=torch.float64)
    assert_close(U.T @ U / (U.norm() ** 2 / 32), eye, torch.float64)
    assert_close(V @ V.T / (V.norm() ** 2 / 32), eye, torch.float64)


def test_the_scale_is_spread_evenly_over_the_cores(generator):
    shape = plan_tt(256, 256, 3, 16)
    cores = random_tt_cores(shape, 1.0, generator)
    gains = [float(torch.linalg.matrix_norm(core.flatten(0, 1), ord=2)) for core in cores[:3]]
    gains += [float(torch.linalg.matrix_norm(core.flatten(1), ord=2)) for core in cores[3:]]
    assert max(gains) == pytest.approx(min(gains), rel=1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize(("v", "d"), [(4096, 256), (4096, 64), (997, 96), (30522, 64)])
def test_rows_of_an_embedding_are_of_similar_length(v, d, order, generator):
    for rank in (8, 32):
        table = TTMEmbedding(plan_ttm(v, d, order, rank), std=0.02, generator=generator).to_dense()
        lengths = table.detach().norm(dim=1) / sqrt(d)
        assert float(lengths.square().mean().sqrt()) == pytest.approx(0.02, rel=0.05)
        assert float(lengths.max() / lengths.min()) < 3


@pytest.mark.parametrize("shape", [plan_ttm(997, 96, 4, 8), plan_ttm(97, 6, 1, 4), plan_ttm(64, 16, 2, 4)])
def test_entries_of_an_embedding_have_their_mean_square_with_padding_included(shape, generator):
    whole_VE = merge_chain(random_ttm_cores(shape, 0.02, generator))
    assert whole_VE.numel() >= shape.dense_parameters
    assert float(whole_VE.square().mean().sqrt()) == pytest.approx(0.02, rel=1e-12)


def test_a_low_rank_table_starts_as_a_narrow_table_and_a_projection(generator):
    shape = plan_ttm(90, 24, 2, 6, vocab_modes=(90, 1), width_modes=(1, 24))
    rows_1V1R, projection_R1D1 = random_ttm_cores(shape, 0.02, generator)
    assert float(rows_1V1R.square().mean().sqrt()) == pytest.approx(0.02, rel=1e-9)
    assert float((rows_1V1R[0, :, 0] @ projection_R1D1[:, 0, :, 0]).square().mean().sqrt()) == pytest.approx(0.02)


def test_nothing_larger_than_a_core_is_formed_for_a_large_table(generator):
    shape, largest = plan_ttm(10_000_000, 16, 4, 8), 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            results = result if isinstance(result, tuple | list) else (result,)
            largest = max([largest, *(part.numel() for part in results if isinstance(part, torch.Tensor))])
            return result

    with Largest():
        random_ttm_cores(shape, 0.02, generator)
    assert largest == max(map(prod, shape.core_shapes))


def test_the_same_seed_gives_the_same_cores():
    for draw, shape in ((random_tt_cores, plan_tt(97, 211, 3, 12)), (random_ttm_cores, plan_ttm(997, 96, 3, 8))):
        first, again, other = (draw(shape, 1.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not torch.equal(first[0], other[0])


def test_a_bond_larger_than_its_neighbours_can_fill_still_starts_well(generator):
    """Such bonds remain when rank adaptation cuts the bond beside them."""
    shape = TTShape(64, 64, (8, 8), (8, 8), (1, 2, 32, 32, 1))
    assert float(TTLinear(shape, generator=generator).to_dense().norm()) == pytest.approx(8.0, rel=1e-5)
