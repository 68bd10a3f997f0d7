from dataclasses import asdict, replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.merge_order import merge_flops, merge_order
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, clip_ranks, factorize, plan_tt, plan_ttm

SIZES = st.integers(1, 40_000)


@pytest.mark.parametrize(
    ("n", "modes"),
    [
        (768, (12, 8, 8)),
        (2048, (16, 16, 8)),
        (3072, (16, 16, 12)),
        (512, (8, 8, 8)),
        (704, (11, 8, 8)),
        (97, (5, 5, 4)),
    ],
)
def test_factorize_prefers_exact_balanced_modes_and_pads_else(n, modes):
    assert factorize(n, 3) == modes


@given(n=SIZES, order=st.integers(1, 4))
@settings(deadline=None)
def test_factorize_covers_any_size_with_balanced_modes(n, order):
    modes = factorize(n, order)
    assert len(modes) == order
    assert list(modes) == sorted(modes, reverse=True)
    assert n <= prod(modes) < 2 * n or (n, prod(modes)) == (1, 1)
    assert order == 1 or modes[0] <= 2 * modes[-1]


@given(n=SIZES, m=SIZES, order=st.integers(1, 4), rank=st.integers(1, 600), outer=st.none() | st.integers(1, 600))
@settings(deadline=None, max_examples=200)
def test_no_planned_train_is_larger_than_low_rank_or_has_an_impossible_bond(n, m, order, rank, outer):
    shape = plan_tt(n, m, order, rank, outer)
    assert shape.middle_rank <= min(rank, n, m)
    assert shape.num_parameters <= shape.middle_rank * (n + m)
    for left, (mode,), right in zip(shape.ranks, shape.core_modes, shape.ranks[1:], strict=False):
        assert right <= left * mode
        assert left <= mode * right


@given(modes=st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple), data=st.data())
@settings(deadline=None)
def test_clipping_keeps_every_bond_that_is_possible(modes, data):
    wanted = data.draw(st.lists(st.integers(1, 200), min_size=len(modes) - 1, max_size=len(modes) - 1))
    ranks = clip_ranks(modes, wanted)
    largest = clip_ranks(modes, [10**9] * len(wanted))
    for k, (rank, want) in enumerate(zip(ranks[1:-1], wanted, strict=True), start=1):
        assert largest[k] == min(prod(modes[:k]), prod(modes[k:]))
        assert rank <= want
        assert rank in (want, ranks[k - 1] * modes[k - 1], modes[k] * ranks[k + 1])


@given(v=SIZES, d=st.integers(1, 2000), order=st.integers(1, 4), rank=st.integers(1, 80))
@settings(deadline=None)
def test_no_planned_table_is_larger_than_the_table(v, d, order, rank):
    shape = plan_ttm(v, d, order, rank)
    assert shape.num_parameters <= shape.dense_parameters
    assert prod(shape.in_modes) >= v
    assert prod(shape.out_modes) >= d


def test_wide_layer_at_high_rank_becomes_plain_factors():
    shape = plan_tt(2048, 2048, order=3, rank=512)
    assert shape.core_shapes == ((1, 2048, 512), (512, 2048, 1))
    assert shape.num_parameters == 2_097_152


def test_six_encoder_attention_layer():
    shape = plan_tt(768, 768, order=3, rank=30, in_modes=(12, 8, 8), out_modes=(8, 8, 12))
    assert shape.ranks == (1, 12, 30, 30, 30, 12, 1)
    assert shape.num_parameters == 2 * (144 + 2880 + 7200)
    assert shape.num_gates == 12 + 30 + 30 + 30 + 12
    assert shape.flops_per_token == 2 * 30 * (768 + 768)
    assert shape == plan_tt(768, 768, order=3, rank=30)


def test_six_encoder_embedding():
    shape = plan_ttm(30522, 768, 4, 32, vocab_modes=(16, 20, 10, 10), width_modes=(4, 4, 8, 6))
    assert shape.num_parameters == 64 * 32 + 80 * 1024 + 80 * 1024 + 60 * 32 == 167_808
    assert shape.num_parameters + shape.num_gates == 167_904


def test_order_one_is_plain_low_rank():
    shape = plan_tt(64, 176, order=1, rank=16, outer_rank=4)
    assert shape.core_shapes == ((1, 64, 16), (16, 176, 1))
    assert shape.merge_flops == 0


def test_sides_may_differ_in_length():
    shape = plan_tt(256, 210, order=3, rank=8, in_modes=(16, 16), out_modes=(5, 6, 7))
    assert (shape.in_modes, shape.out_modes) == ((16, 16), (5, 6, 7))
    assert shape.ranks == (1, 8, 8, 8, 7, 1)


def test_largest_modes_lie_at_the_ends_of_the_train():
    shape = plan_tt(768, 768, order=3, rank=16)
    assert (shape.in_modes, shape.out_modes) == ((12, 8, 8), (8, 8, 12))
    reordered = replace(shape, in_modes=(8, 8, 12), out_modes=(12, 8, 8))
    assert shape.num_parameters < reordered.num_parameters


def test_merging_uses_the_cheaper_end_first():
    assert merge_order((1, 12, 30, 30), (12, 8, 8)) == (0, 0)
    assert merge_order((30, 30, 12, 1), (8, 8, 12)) == (1, 0)
    assert merge_flops((1, 12, 30, 30), (12, 8, 8)) == 2 * (12 * 12 * 8 * 30 + 96 * 30 * 8 * 30)
    assert merge_flops((1, 5), (7,)) == 0


@pytest.mark.parametrize("shape", [plan_tt(97, 211, 3, 16), plan_ttm(997, 96, 3, 8)])
def test_a_shape_survives_the_trip_through_a_record(shape):
    assert type(shape)(**asdict(shape)) == shape
    assert hash(shape) == hash(replace(shape))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: plan_tt(20, 20, 2, 4, in_modes=(3, 4)), ["in_modes", "12", "20", "39", "(5, 4)"]),
        (lambda: plan_tt(20, 20, 2, 4, out_modes=(8, 8)), ["out_modes", "64", "39"]),
        (lambda: plan_tt(20, 20, 2, 4, in_modes=(-4, -5)), ["in_modes", "positive"]),
        (lambda: plan_tt(20, 20, 2, 0), ["rank = 0"]),
        (lambda: plan_tt(20, 20, 2, 4, outer_rank=0), ["outer_rank = 0"]),
        (lambda: plan_tt(0, 20, 2, 4), ["in_features = 0"]),
        (lambda: TTShape(20, 20, (5, 4), (4, 5), (1, 4, 4, 1)), ["ranks", "4 cores", "5 positive"]),
        (lambda: TTShape(20, 20, (20,), (20,), (1, 0, 1)), ["ranks"]),
        (lambda: plan_ttm(100, 16, 2, 4, vocab_modes=(10, 10), width_modes=(4, 2, 2)), ["vocab_modes", "width_modes"]),
        (lambda: TTMShape(100, 16, (10, 9), (4, 4), (1, 4, 1)), ["vocab_modes", "90", "100"]),
    ],
)
def test_impossible_shapes_are_refused_with_a_remedy(build, words):
    with pytest.raises(ConfigError) as refusal:
        build()
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
