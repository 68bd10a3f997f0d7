"""Rows of a table are the same however its train is cut, and it is cut where that is cheapest."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.lookup_plan import _ways_to_cut, lookup_cost, plan_lookup
from comera_dist.formats.tensor_train.shapes import TTMShape, plan_ttm

SHAPES = [
    plan_ttm(61, 20, 1, 4),
    TTMShape(61, 20, (8, 8), (4, 5), (1, 7, 1)),
    TTMShape(61, 19, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1)),
    TTMShape(61, 24, (4, 2, 2, 4), (2, 3, 2, 2), (1, 4, 6, 5, 1)),
]
TEN_MILLION = 10_131_227


def cores_per_part(parts):
    return tuple(stop - first for first, stop in parts)


def test_all_ways_to_cut_are_tried():
    assert [cores_per_part(parts) for parts in _ways_to_cut(1)] == [(1,)]
    assert [cores_per_part(parts) for parts in _ways_to_cut(3)] == [(3,), (1, 2), (2, 1), (1, 1, 1)]
    assert list(_ways_to_cut(3))[1] == ((0, 1), (1, 3))


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_rows_and_gradients_are_the_same_however_a_train_is_cut(shape, generator, assert_close):
    table = TTMEmbedding(shape, std=1.0, generator=generator)
    for gate in table.gates:
        gate.data.uniform_(0.5, 1.5, generator=generator)
    ids = torch.tensor([[60, 0, 17], [17, 5, 33]])
    grad = torch.randn(2, 3, shape.outputs, generator=generator)
    parameters = list(table.parameters())
    oracle = table.to_dense()[ids]
    expected = torch.autograd.grad(oracle, parameters, grad)
    for parts in _ways_to_cut(len(shape.core_modes)):
        rows = table.rows(ids.flatten(), parts).view(2, 3, -1)
        assert_close(rows, oracle)
        for actual, wanted in zip(torch.autograd.grad(rows, parameters, grad), expected, strict=True):
            assert_close(actual, wanted)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_flops_of_a_lookup_are_counted_ones_however_a_train_is_cut(shape, generator):
    table = TTMEmbedding(shape, generator=generator)
    for parts in _ways_to_cut(len(shape.core_modes)):
        with FlopCounterMode(display=False) as counter:
            table.rows(torch.arange(37), parts)
        assert lookup_cost(shape, 37, parts=parts)[0] == counter.get_total_flops() > 0


def test_what_a_lookup_moves_is_its_factors_and_results():
    shape = TTMShape(64, 20, (8, 8), (4, 5), (1, 7, 1))
    assert cores_per_part(plan_lookup(shape, 3)) == (1, 1)
    assert lookup_cost(shape, 3) == (3 * 2 * 4 * 7 * 5, 3 * (4 * 7 + 7 * 5 + 4 * 5))
    assert lookup_cost(SHAPES[0], 3) == (0, 0)


def test_rows_of_two_plain_factors_multiply_the_second_one_together(generator, assert_close):
    shape = TTMShape(61, 20, (61, 1), (1, 20), (1, 7, 1))
    table = TTMEmbedding(shape, std=1.0, generator=generator)
    table.gates[0].data.uniform_(0.5, 1.5, generator=generator)
    ids = torch.tensor([60, 0, 17, 5, 33])
    grad = torch.randn(5, 20, generator=generator)
    parameters = list(table.parameters())
    with FlopCounterMode(display=False) as counter:
        rows = table.rows(ids)
    assert counter.get_total_flops() == lookup_cost(shape, 5)[0] == 2 * 5 * 7 * 20
    assert lookup_cost(shape, 5)[1] == 5 * 7 + 7 * 20 + 5 * 20
    oracle = table.to_dense()[ids]
    assert_close(rows, oracle)
    expected = torch.autograd.grad(oracle, parameters, grad)
    for actual, wanted in zip(torch.autograd.grad(rows, parameters, grad), expected, strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize(
    ("table", "rows", "fastest"),
    [
        ((TEN_MILLION, 32, 3, 32), 2048, (1, 1, 1)),
        ((TEN_MILLION, 32, 3, 64), 512, (1, 1, 1)),
        ((TEN_MILLION, 32, 3, 32), 13_000, (2, 1)),
        ((TEN_MILLION, 32, 4, 32), 128, (1, 1, 1, 1)),
        ((TEN_MILLION, 32, 4, 96), 2048, (2, 2)),
        ((30_522, 768, 4, 32), 3600, (2, 2)),
        ((32_000, 768, 3, 32), 1000, (2, 1)),
        ((12_517, 32, 3, 70), 700, (1, 2)),
        ((4096, 256, 3, 64), 500, (1, 2)),
        ((4096, 256, 3, 64), 4000, (3,)),
    ],
)
def test_the_fastest_way_that_was_measured_is_chosen(table, rows, fastest):
    """Forward and backward, all ways in turn, on one core of an AMD EPYC, torch 2.13."""
    assert cores_per_part(plan_lookup(plan_ttm(*table), rows)) == fastest


def test_the_path_is_chosen_for_the_rows_that_are_computed(generator):
    shape = plan_ttm(4096, 256, 3, 64)
    assert plan_lookup(shape, 500) != plan_lookup(shape, 4000)
    table = TTMEmbedding(shape, generator=generator)
    with FlopCounterMode(display=False) as counter:
        table(torch.arange(500).repeat(8))
    flops = [lookup_cost(shape, 500, parts=plan_lookup(shape, rows))[0] for rows in (500, 4000)]
    assert counter.get_total_flops() == flops[0] != flops[1]


def test_numbers_of_rows_share_a_plan_up_to_a_power_of_two():
    shape = plan_ttm(4096, 256, 3, 64)
    assert plan_lookup(shape, 1025) is plan_lookup(shape, 2048)
    assert plan_lookup(shape, 1024) != plan_lookup(shape, 1025)
    assert plan_lookup(shape, 0) == plan_lookup(shape, 1)
