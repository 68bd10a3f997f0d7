"""Both paths of a block tensor train against its dense weight, and the choice between them."""

import shutil

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.formats.base import BF16, FP32
from comera_dist.formats.block_path import cheapest_path, path_cost
from comera_dist.formats.block_product import multiply_blocks
from comera_dist.formats.block_train import BlockTrainPlan, plan_blocks

PLANS = [
    plan_blocks(24, 40, 1),
    plan_blocks(24, 40, 3),
    plan_blocks(17, 11, 2),  # padded on both sides
    plan_blocks(18, 10, 1, blocks=1),
    plan_blocks(6, 6, 1, blocks=6),  # blocks of one number
]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def built(plan, generator, dtype=torch.float32):
    layer = plan.build(0.3, generator, bias=True)
    for parameter in (*layer.gates, layer.bias):
        parameter.data.uniform_(0.5, 1.5, generator=generator)
    return layer.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (2, 30), (0,)], ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("path", ["blocks", "weight"])
def test_every_path_computes_the_dense_layer(path, plan, batch, dtype, generator, assert_close):
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    layer = built(plan, generator, exact)
    x = torch.randn(*batch, plan.inputs, generator=generator, dtype=exact, requires_grad=True)
    grad_y = torch.randn(*batch, plan.outputs, generator=generator, dtype=exact)
    # A gate's gradient is one sum over all tokens and blocks, whose terms cancel: bf16 leaves few digits of it.
    gates = [] if dtype == torch.bfloat16 else layer.gates
    parameters = [x, layer.core_1, layer.core_2, layer.bias, *gates]
    expected_y = F.linear(x, layer.to_dense(), layer.bias)
    expected = torch.autograd.grad(expected_y, parameters, grad_y)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = layer.multiply(x, path)
    assert y.dtype == dtype
    assert_close(y, expected_y, dtype)
    for actual, oracle in zip(torch.autograd.grad(y, parameters, grad_y.to(y.dtype)), expected, strict=True):
        assert_close(actual, oracle, dtype)


@pytest.mark.parametrize(("rank", "tokens"), [(1, 5), (2, 3)])
def test_gradients_of_the_product_are_those_of_finite_differences(rank, tokens, generator):
    (n, c), (m, b) = (2, 3), (4, 2)
    sizes = ((tokens, n, c), (n, c, m, rank), (m, rank, n, b))
    x, first, second = (
        torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes
    )
    oracle = torch.einsum("tic,icjk,jkib->tjb", x, first, second)
    torch.testing.assert_close(multiply_blocks(x, first, second), oracle)
    assert torch.autograd.gradcheck(multiply_blocks, (x, first, second))
    assert torch.autograd.gradcheck(lambda first: multiply_blocks(x.detach(), first, second.detach()), first)


@pytest.mark.parametrize("of", [(0, 1, 2), (2,)], ids=str)  # second derivatives by x, first and second, or by second
def test_second_derivatives_are_those_of_the_definition(of, generator):
    (n, c), (m, b), r = (2, 3), (4, 2), 2
    sizes = ((5, n, c), (n, c, m, r), (m, r, n, b))
    factors = [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]

    def second(product):
        loss = product(*factors).square().sum()
        gradients = torch.autograd.grad(loss, [factors[k] for k in of], create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), factors[1:])

    expected = second(lambda x, first, second: torch.einsum("tic,icjk,jkib->tjb", x, first, second))
    factors[0].requires_grad_(len(of) > 1)  # as the input of a model, which trains no input
    for found, wanted in zip(second(multiply_blocks), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_strided_inputs_and_gradients_are_read_as_they_are(generator):
    layer = built(plan_blocks(24, 40, 2), generator)
    x = torch.randn(24, 30, generator=generator).T.requires_grad_()
    parameters = [x, *layer.parameters()]
    expected = torch.autograd.grad(F.linear(x, layer.to_dense(), layer.bias).sum(), parameters)
    found = torch.autograd.grad(layer.multiply(x, "blocks").sum(), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_compiled_product_is_one_graph_and_the_same_function(backend, generator):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor compiles its kernels for CPUs with g++, which is not installed")
    layer, x = built(plan_blocks(17, 11, 2), generator), torch.randn(9, 17, generator=generator, requires_grad=True)
    parameters = [x, *layer.parameters()]
    compiled = torch.compile(lambda x: layer.multiply(x, "blocks").square().sum(), backend=backend, fullgraph=True)
    expected = torch.autograd.grad(layer.multiply(x, "blocks").square().sum(), parameters)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), parameters), expected)


def test_wide_layers_go_through_their_blocks_and_narrow_ones_or_high_ranks_through_the_weight():
    plans = {"wide": plan_blocks(256, 704, 1), "narrow": plan_blocks(64, 64, 2), "high": plan_blocks(256, 256, 8)}
    assert {name: cheapest_path(plan, 4096, "cpu", FP32) for name, plan in plans.items()} == {
        "wide": "blocks",
        "narrow": "weight",
        "high": "weight",
    }
    assert cheapest_path(plans["high"], 1, "cpu", FP32) == "blocks"  # merging would take longer than one token


def test_in_bf16_a_cpu_takes_the_weight_of_layers_that_are_not_wide():
    """As on an Intel Xeon: 7 ms by the weight and 15 by blocks for the narrower, 122 and 81 for the wider."""
    narrower, wider = plan_blocks(256, 704, 2), plan_blocks(2048, 2048, 1)
    assert [cheapest_path(plan, 2048, "cpu", FP32) for plan in (narrower, wider)] == ["blocks", "blocks"]
    assert [cheapest_path(plan, 2048, "cpu", BF16) for plan in (narrower, wider)] == ["weight", "blocks"]


@pytest.mark.parametrize(("rank", "path"), [(4, "blocks"), (8, "blocks"), (16, "weight")])
def test_a_gpu_takes_the_path_that_was_faster_on_an_h200(rank, path):
    """benchmarks/results/blocks_cuda.json; rank 16 in an earlier run."""
    assert cheapest_path(plan_blocks(4096, 4096, rank), 16_384, "cuda", BF16) == path


@pytest.mark.parametrize("plan", [plan_blocks(64, 64, 2), plan_blocks(67, 91, 3)], ids=str)
@pytest.mark.parametrize("path", ["blocks", "weight"])
def test_costs_are_those_counted_by_torch(path, plan, generator):
    layer, x = plan.build(0.3, generator), torch.randn(300, plan.inputs, generator=generator, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer.multiply(x, path).sum().backward()
    assert counter.get_total_flops() == path_cost(plan, path, 300, FP32).flops
    (n, c), (m, b), r = plan.in_blocks, plan.out_blocks, plan.rank
    moved = 300 * (n * c + 2 * n * m * r + m * b) + plan.num_parameters
    assert path_cost(plan, "blocks", 300, FP32).bytes_moved == 3 * 4 * moved


def test_the_step_and_the_forward_pass_cost_the_same_path():
    for plan in (plan_blocks(64, 64, 2), BlockTrainPlan(256, 704, (16, 16), (22, 32), 1)):
        cost = plan.step_cost(4096, "cpu", FP32)
        assert cost == path_cost(plan, cheapest_path(plan, 4096, "cpu", FP32), 4096, FP32)
        assert cost.flops == 3 * plan.forward_flops(4096)
    assert plan.step_cost(4096, "cpu", FP32, is_head=True).path == "weight"


def test_backward_keeps_the_input_the_intermediate_and_the_factors(generator):
    plan, tokens, kept = plan_blocks(64, 64, 2), 2000, {}
    layer, x = plan.build(0.3, generator), torch.randn(2000, 64, generator=generator, requires_grad=True)

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer.multiply(x, "blocks")
    of_tokens = 4 * tokens * (64 + 8 * 8 * 2)
    assert of_tokens <= sum(kept.values()) <= of_tokens + 4 * 2 * plan.parameters
