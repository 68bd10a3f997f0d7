"""The planner's counts by hand, and every path against a dense layer."""

import time

import pytest
import torch
from torch.nn import functional as F

from comera_dist.formats.shared_input import shared_input
from comera_dist.formats.tensor_train import contraction_plan
from comera_dist.formats.tensor_train.contraction_plan import contraction_cost, padded_rank, plan_contraction
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTShape, plan_tt

SHAPES = [
    plan_tt(24, 30, 1, 7),
    TTShape(45, 105, (5, 3, 3), (3, 5, 7), (1, 4, 7, 9, 8, 5, 1)),
    plan_tt(97, 211, 3, 9, 5),
    TTShape(24, 105, (6, 4), (3, 5, 7), (1, 3, 8, 5, 4, 1)),
]
ALL = ("sides", "dense", "chain")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [(), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", ALL)
def test_every_path_computes_the_dense_layer(path, shape, batch, dtype, generator, assert_close):
    layer = TTLinear(shape, bias=True, generator=generator)
    for parameter in (*layer.gates, layer.bias):
        parameter.data.uniform_(0.5, 1.5, generator=generator)
    x = torch.randn(*batch, shape.inputs, generator=generator, requires_grad=True)
    grad_y = torch.randn(*batch, shape.outputs, generator=generator)
    parameters = [x, *layer.parameters()]
    expected_y = F.linear(x, layer.to_dense(), layer.bias)
    expected = torch.autograd.grad(expected_y, parameters, grad_y)
    plan = plan_contraction(shape, x.numel() // shape.inputs, "cpu", dtype.itemsize, among=(path,))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = layer.multiply(x, plan)
    assert y.dtype == dtype
    assert_close(y, expected_y, dtype)
    for actual, oracle in zip(torch.autograd.grad(y, parameters, grad_y.to(y.dtype)), expected, strict=True):
        assert_close(actual, oracle, dtype)


def test_costs_of_merged_sides_are_those_counted_by_hand():
    plan = plan_contraction(TTShape(12, 20, (3, 4), (4, 5), (1, 3, 16, 5, 1)), 1024)
    # (m, k, n) of every product: the two sides, then x U and (x U) V.
    merges, products = [(3, 3, 64), (64, 5, 5)], [(1024, 12, 16), (1024, 16, 20)]
    assert plan.path == "sides"
    assert plan.flops == 3 * sum(2 * m * k * n for m, k, n in merges + products)
    assert plan.bytes_moved == 3 * 4 * sum(m * k + k * n + m * n for m, k, n in merges + products)


def test_low_rank_goes_through_its_sides_and_high_rank_through_the_dense_weight():
    assert [plan_contraction(plan_tt(768, 768, 1, rank), 4096).path for rank in (64, 256, 448)] == [
        "sides",
        "sides",
        "dense",
    ]


def test_a_wide_middle_between_narrow_outer_bonds_goes_core_by_core():
    """h has 192 numbers a token, but what lies between the outer bonds only 256 products' worth."""
    plan = plan_contraction(plan_tt(768, 2048, 3, 192, 32), 2048)
    sides = 3 * 2 * 2048 * 192 * (768 + 2048)
    assert plan.path == "chain"
    assert plan.flops < 0.5 * sides
    assert plan_contraction(plan_tt(768, 2048, 3, 192, 64), 2048).path == "sides"


def test_the_chain_costs_what_opt_einsum_counts():
    import opt_einsum

    shape = plan_tt(768, 2048, 3, 192, 32)
    plan = plan_contraction(shape, 2048)
    _, info = opt_einsum.contract_path(
        plan.equation, (2048, *shape.in_modes), *shape.core_shapes, shapes=True, optimize=plan.order
    )
    assert plan.flops == 3 * int(info.opt_cost)


def test_token_counts_share_plans_up_to_the_next_power_of_two():
    shape = plan_tt(96, 96, 3, 8)
    assert plan_contraction(shape, 513) is plan_contraction(shape, 1024)
    assert plan_contraction(shape, 513) is not plan_contraction(shape, 512)
    assert plan_contraction(shape, 0).flops > 0


@pytest.mark.parametrize("shape", [plan_tt(96, 96, 1, 32), plan_tt(768, 2048, 3, 192, 32)], ids=str)
@pytest.mark.parametrize("path", ALL)
def test_a_step_costs_what_its_tokens_cost_though_they_share_a_plan(path, shape):
    def flops(tokens):
        return contraction_cost(shape, tokens, among=(path,)).flops

    assert flops(1024) == plan_contraction(shape, 1024, among=(path,)).flops
    assert flops(600) - flops(599) == flops(1024) - flops(1023) > 0  # of a token, without merging


@pytest.mark.parametrize(
    ("rank", "padded"), [(1, 16), (4, 16), (12, 16), (16, 16), (17, 17), (27, 27), (28, 32), (30, 32), (192, 192)]
)
def test_ranks_are_padded_where_that_is_faster(rank, padded):
    assert padded_rank(rank, "cpu") == padded
    assert padded_rank(rank, "cuda") == -(-rank // 8) * 8


def test_planning_a_7b_model_takes_less_than_two_seconds():
    contraction_plan._plan.of_constants.cache_clear()
    shapes = [(4096, 4096), (4096, 11008), (11008, 4096), (4096, 32000)]
    start = time.process_time()
    for _ in range(32):
        for order in (1, 2, 3, 4):
            for inputs, outputs in shapes:
                plan_contraction(plan_tt(inputs, outputs, order, 1024, 128), 8192, "cuda", 2)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("rank", [30, 48])
def test_backward_keeps_the_input_the_narrow_intermediate_and_what_merging_takes(rank, generator):
    """Bytes, exactly: nothing else is kept, and nothing twice."""
    tokens, shape = 2000, plan_tt(256, 704, 3, rank, 16)
    layer = TTLinear(shape, generator=generator)
    assert layer.shares_input(tokens, torch.float32)
    x = torch.randn(tokens, 256, generator=generator, requires_grad=True)
    kept = _kept_bytes(lambda: layer(x), layer)
    narrow, side = padded_rank(rank, "cpu"), 256 + 704
    token_bytes = 4 * tokens * (256 + narrow)
    assert token_bytes <= kept <= token_bytes + 4 * (2 * narrow * side + 2 * shape.num_parameters)


def test_layers_that_share_an_input_keep_it_once(generator):
    tokens, shape = 2000, plan_tt(256, 256, 3, 32, 16)
    layers = torch.nn.ModuleList(TTLinear(shape, generator=generator) for _ in range(3))
    assert all(layer.shares_input(tokens, torch.float32) for layer in layers)
    x = torch.randn(tokens, 256, generator=generator, requires_grad=True)
    kept = _kept_bytes(lambda: shared_input(x, layers), layers)
    token_bytes = 4 * tokens * (256 + 3 * 32)
    assert token_bytes <= kept <= token_bytes + 4 * 3 * (2 * 32 * 512 + 2 * shape.num_parameters)


def _kept_bytes(forward, module):
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    assert result is not None
    return sum(kept.values())
